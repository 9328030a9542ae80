"""What of a step differs first: its start, batch, layers, gradients or update, in the order of the computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from runner.bisect.children import Replay
from runner.data.base import WEIGHT, Array
from runner.optim.paths import is_variable, owner_of
from runner.replay.recompute import BATCH, GRADIENT, LAYER, is_exact

START = "start"
BATCH_CAUSE = "batch"
LAYER_CAUSE = "layer"
LOSS = "loss"
GRADIENT_CAUSE = "gradient"
UPDATE = "update"
UNKNOWN = "unknown"

_INDEX = f"{BATCH}index"

# Examples that are printed; the file has all.
_SHOWN = 10

_DESCRIPTIONS = {
    START: "the runs begin with different values",
    BATCH_CAUSE: "the batches differ",
    LAYER_CAUSE: "the batches are equal, and the outputs of a layer differ",
    LOSS: "the layers' outputs are equal, and the gradients differ: the loss, its weights, regularization or dropout",
    GRADIENT_CAUSE: "the layers' outputs are not known, and the gradients differ",
    UPDATE: "the gradients are equal, and the update differs: the optimizer, its state or its learning rate",
    UNKNOWN: "the batches are equal, and what the step computes of them is not known",
}
_NAN_DESCRIPTIONS = {
    BATCH_CAUSE: "the batch has a NaN or Inf",
    LAYER_CAUSE: "the batch is finite, and the output of a layer is not",
    LOSS: "the layers' outputs are finite, and the loss is not",
    GRADIENT_CAUSE: "the loss is finite, and a gradient is not",
    UPDATE: "the gradients are finite, and the update is not",
    UNKNOWN: "the batch is finite, and what the step computes of it is not known",
}


@dataclass(frozen=True)
class Cause:
    """Where two runs part, or where a NaN began.

    Attributes:
      step: the training step, counted from 1; 0: before the first.
      kind: what differs first: `start`, `batch`, `layer`, `loss`, `gradient`, `update` or `unknown`.
      is_nan: whether a NaN was searched, not a difference.
      layer: the first layer; empty if it is not known.
      variable: the first variable.
      variables: number of variables that differ after the step.
      array: the array of the batch that differs; empty: none does.
      rows: indices in the training split of the examples that differ, or have a NaN.
      examples: indices of all examples of the batch.
      losses: of the step, in each run.
    """

    step: int
    kind: str
    is_nan: bool
    layer: str
    variable: str
    variables: int
    array: str
    rows: Sequence[int]
    examples: Sequence[int]
    losses: Sequence[float]

    def content(self) -> dict[str, Any]:
        """Returns the content of bisect.json."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yields the result for the user."""
        if self.is_nan:
            yield f"the first NaN or Inf is in step {self.step:,}: {_NAN_DESCRIPTIONS[self.kind]}"
        elif self.step == 0:
            yield f"the runs part before the first step: {_DESCRIPTIONS[self.kind]}"
        else:
            yield f"the runs part in step {self.step:,}: {_DESCRIPTIONS[self.kind]}"
        if self.losses:
            yield f"loss of the step: {' and '.join(f'{loss:.9g}' for loss in self.losses)}"
        if self.layer:
            yield f"first layer: {self.layer}"
        if self.variable:
            yield f"first variable: {self.variable} (of {self.variables})"
        if self.array:
            yield f"array of the batch: {self.array}; examples {_listed(self.rows)}"
        yield f"examples of the batch, as indices in the training split: {_listed(self.examples)}"


def _listed(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_SHOWN]))
    return shown if len(rows) <= _SHOWN else f"{shown}, ... ({len(rows)} in all)"


def differing(one: Mapping[str, Any], other: Mapping[str, Any], tolerance: float) -> list[str]:
    """Returns the variables in which two recorded states differ, those of the model first.

    Args:
      one: a state of replay.json.
      other: another one.
      tolerance: relative to the norm of a variable; 0: bitwise, as integers are always compared.
    """
    paths: list[str] = []
    for path, digest in one["digests"].items():
        if other["digests"].get(path) == digest:
            continue
        has_sketches = path in one["sketches"] and path in other["sketches"]
        if has_sketches and tolerance and _has_close_sketch(path, one, other, tolerance):
            continue
        paths.append(path)
    paths += [path for path in other["digests"] if path not in one["digests"]]
    return sorted(paths, key=lambda path: not is_variable(path))


def _has_close_sketch(path: str, one: Mapping[str, Any], other: Mapping[str, Any], tolerance: float) -> bool:
    norm, signed_sum = one["sketches"][path]
    other_norm, other_sum = other["sketches"][path]
    allowed = tolerance * max(norm, other_norm)
    return bool(abs(norm - other_norm) <= allowed and abs(signed_sum - other_sum) <= allowed)


def are_close(one: Array, other: Array, tolerance: float) -> bool:
    """Returns whether two arrays agree.

    Args:
      one: an array.
      other: another one.
      tolerance: largest relative difference of floating-point numbers. Integers, such as labels, must be equal.
    """
    if is_exact(one) or is_exact(other):
        return np.array_equal(one, other)
    return _relative_difference(one, other) <= tolerance


def _relative_difference(one: Array, other: Array) -> float:
    """Returns the L2 norm of the difference of two arrays, relative to the larger one; 0 if they are identical."""
    if one.shape != other.shape:
        return np.inf
    if one.dtype == other.dtype and one.tobytes() == other.tobytes():
        return 0.0
    before = np.asarray(one, np.float64)
    after = np.asarray(other, np.float64)
    if np.array_equal(before, after, equal_nan=True):
        return 0.0
    size = max(float(np.linalg.norm(before)), float(np.linalg.norm(after)))
    difference = float(np.linalg.norm(before - after))
    return difference / size if np.isfinite(difference) and size else np.inf


def of_difference(step: int, start: int, one: Replay, other: Replay, tolerance: float) -> Cause:
    """Returns what of a step differs first in two runs.

    Args:
      step: after which the states differ first.
      start: steps done where both replays start.
      one: replay of a run, with arrays.
      other: of the other run.
      tolerance: smallest relative difference that counts.
    """
    paths = differing(one.states[step], other.states[step], tolerance)
    arrays = one.arrays()
    others = other.arrays()
    # Step 0 is the state before training, which has no loss.
    losses = [side.metrics(step).get("loss", float("nan")) for side in (one, other)] if step else []

    def is_different(name: str) -> bool:
        return name not in others or not are_close(arrays[name], others[name], tolerance)

    # No step has been computed between the start and this state, so there is no order of computation to look through.
    if step == start:
        return _cause(step, START, False, arrays, paths, losses, layer=_layer_of(paths[0]))
    return _first(step, False, arrays, paths, losses, is_different, _row_differs(arrays, others))


def of_nan(step: int, side: Replay) -> Cause:
    """Returns what of a step has the first NaN or Inf.

    Args:
      step: the step.
      side: its replay, with arrays.
    """
    arrays = side.arrays()
    paths = sorted(side.states[step]["not_finite"], key=lambda path: not is_variable(path))

    def is_bad(name: str) -> bool:
        return not _is_finite(arrays[name])

    def row_is_bad(name: str, row: int) -> bool:
        return not _is_finite(arrays[name][row])

    loss = side.metrics(step).get("loss", float("nan"))
    return _first(step, True, arrays, paths, [loss], is_bad, row_is_bad)


def _is_finite(array: Array) -> bool:
    return not np.issubdtype(array.dtype, np.floating) or bool(np.all(np.isfinite(array)))


def _row_differs(arrays: Mapping[str, Array], others: Mapping[str, Array]) -> Callable[[str, int], bool]:
    def differs(name: str, row: int) -> bool:
        if name not in others or row >= len(others[name]):
            return True
        return not np.array_equal(arrays[name][row], others[name][row])

    return differs


def _first(
    step: int,
    is_nan: bool,
    arrays: Mapping[str, Array],
    paths: Sequence[str],
    losses: Sequence[float],
    is_affected: Callable[[str], bool],
    row_is_affected: Callable[[str, int], bool],
) -> Cause:
    """Returns the first part of a step that is affected, in the order in which it is computed."""
    affected = [name for name in arrays if is_affected(name)]
    batch = [name for name in affected if name.startswith(BATCH) and name not in (_INDEX, f"{BATCH}{WEIGHT}")]
    # Another order of the examples shows in all arrays; the indices say it.
    if _INDEX in affected:
        batch.insert(0, _INDEX)
    layers = [name.removeprefix(LAYER) for name in affected if name.startswith(LAYER)]
    gradients = [name.removeprefix(GRADIENT) for name in affected if name.startswith(GRADIENT)]
    layer = layers[0] if layers else ""
    # The gradients of a layer that is affected itself say more than those of the layers before it.
    ordered = _of_layer_first(layer, gradients) or list(paths)
    if batch:
        rows = [row for row in range(len(arrays[batch[0]])) if row_is_affected(batch[0], row)]
        name = batch[0].removeprefix(BATCH)
        return _cause(step, BATCH_CAUSE, is_nan, arrays, ordered, losses, layer=layer, array=name, rows=rows)
    if layer:
        return _cause(step, LAYER_CAUSE, is_nan, arrays, ordered, losses, layer=layer)
    knows_layers = any(name.startswith(LAYER) for name in arrays)
    knows_gradients = any(name.startswith(GRADIENT) for name in arrays)
    has_bad_loss = is_nan and not np.all(np.isfinite(losses))
    # A custom step (`task=step`) shows neither, and a loss may come from any layer of a model that shows none.
    if not knows_gradients or (has_bad_loss and not knows_layers):
        return _cause(step, UNKNOWN, is_nan, arrays, ordered, losses, layer=_layer_of(ordered[0]) if ordered else "")
    if gradients or has_bad_loss:
        kind = GRADIENT_CAUSE if not knows_layers or (is_nan and not has_bad_loss) else LOSS
        if is_nan:
            # The backward pass begins with the last layer.
            ordered = ordered[::-1]
        return _cause(step, kind, is_nan, arrays, ordered, losses, layer=_layer_of(ordered[0]) if ordered else "")
    return _cause(step, UPDATE, is_nan, arrays, paths, losses, layer=_layer_of(paths[0]) if paths else "")


def _of_layer_first(layer: str, paths: Sequence[str]) -> list[str]:
    return sorted(paths, key=lambda path: _layer_of(path) != layer)


def _layer_of(path: str) -> str:
    """Returns the layer of a variable, of its optimizer state or of its average."""
    owner: str = owner_of(path) if not is_variable(path) else path
    return owner.rpartition("/")[0]


def _cause(
    step: int,
    kind: str,
    is_nan: bool,
    arrays: Mapping[str, Array],
    paths: Sequence[str],
    losses: Sequence[float],
    layer: str,
    array: str = "",
    rows: Sequence[int] = (),
) -> Cause:
    indices = arrays[_INDEX]
    weight = arrays[f"{BATCH}{WEIGHT}"]
    return Cause(
        step,
        kind,
        is_nan,
        layer,
        paths[0] if paths else "",
        len(paths),
        array,
        [int(indices[row]) for row in rows if weight[row] > 0],
        [int(row) for row in indices[weight > 0]],
        list(losses),
    )
