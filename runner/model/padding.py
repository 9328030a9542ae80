"""Proof that the padding of a batch touches nothing that is kept: a built model is called with several paddings.

Padding counts for nothing in the mean of the task's loss. What else a training call keeps it may still reach: running
statistics and other variables that no gradient changes, losses that layers add, and the outputs of the batch's other
examples where a layer mixes them. Each is compared under two paddings, and without any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array, ArraySpec, Batch
from runner.errors import ConfigError

# examples of a call
_REAL = 2
_PADDING = 2
# Two calls that differ in padding alone may differ by this times what two equal calls do: nothing on a CPU.
_NOISE = 8.0
_ROUNDING = 1e-3  # relative, of calls that differ in their batches' size: other sums, in bfloat16 too
# Relative, of a user's function of float32 outputs that are the same bits: sums in another order err by a few 1e-7,
# one row of padding among thousands counts for 1e-4 and more.
_FUNCTION_ROUNDING = 1e-5


@dataclass(frozen=True)
class Called:
    """What a training call gives; the model stays as it was.

    Attributes:
      kept: path -> value after the call, of the variables that no gradient changes.
      losses: that layers add.
      outputs: (B, ...) each.
    """

    kept: Mapping[str, Array]
    losses: Sequence[Array]
    outputs: Sequence[Array]


Call = Callable[[Batch], Called]


def check(call: Call, inputs: Mapping[str, ArraySpec], before: Mapping[str, Array], microbatches: int) -> None:
    """Calls a model, and refuses padded batches where they would leave a trace.

    Args:
      call: of the model's inputs by name, (B, ...) each.
      inputs: their specs.
      before: as `Called.kept`, before any call.
      microbatches: of a step, of which one may be padding alone.

    Raises:
      ConfigError: names the variable, or what else padding would count in.
    """
    rng = np.random.default_rng(0)
    real, one, other = (_examples(inputs, rng, count) for count in (_REAL, _PADDING, _PADDING))
    first, again, second = (call(_joined(real, padding)) for padding in (one, one, other))
    alone = call(real)
    for path, value in first.kept.items():
        noise = _gap(value, again.kept[path])
        if _gap(value, second.kept[path]) > _NOISE * noise or _is_off(value, alone.kept[path]):
            raise invalid(f"variable {path}, which a training call of the model changes")
        if microbatches > 1 and _gap(value, before[path]) > _NOISE * noise:
            raise invalid(
                f"variable {path}, which a training call of the model changes, for a step of {microbatches} "
                "micro-batches may have some of padding alone"
            )
    for which, value in enumerate(first.losses):
        if _gap(value, second.losses[which]) > _NOISE * _gap(value, again.losses[which]):
            raise invalid("a loss that a layer adds (add_loss or an activity_regularizer)")
    for which, value in enumerate(first.outputs):
        rows, same, changed = (each[:_REAL] for each in (value, again.outputs[which], second.outputs[which]))
        if _gap(rows, changed) > _NOISE * _gap(rows, same):
            raise invalid("what the model gives for the other examples of a batch, which a layer mixes")


def check_functions(seen: Mapping[str, Array], unseen: Mapping[str, Array]) -> None:
    """Rejects padded batches if a task's function gives examples something else where it sees padding.

    A function that leaves out rows of weight 0 by itself gives the same up to rounding, and passes.

    Args:
      seen: the examples' `loss` and the task's totals by name, of a batch that ends in padding.
      unseen: the same of its examples alone.

    Raises:
      ConfigError: names the loss or the metric.
    """
    for name, value in seen.items():
        size = np.max(np.abs(np.nan_to_num(np.asarray(unseen[name]).astype(np.float64))), initial=0.0)
        if _gap(value, unseen[name]) > _FUNCTION_ROUNDING * float(size):
            which = "the loss" if name == "loss" else f"metric {name}"
            raise ConfigError(
                f"dataset.remainder=pad: {which} of an example depends on other rows of its batch, and "
                "would depend on padding; set dataset.remainder=drop, or let the function leave out rows whose "
                'batch["weight"] is 0'
            )


def invalid(what: str) -> ConfigError:
    """Returns the refusal of padded batches.

    Args:
      what: padding would count in.
    """
    return ConfigError(f"dataset.remainder=pad: padding would count in {what}; set dataset.remainder=drop")


def _examples(inputs: Mapping[str, ArraySpec], rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Returns examples drawn as wide as data is; of whole numbers 0 and 1, which every table has."""
    found: dict[str, Array] = {}
    for name, spec in inputs.items():
        shape = (count, *spec.shape)
        kind = np.dtype(spec.dtype).kind
        drawn = rng.normal(size=shape) if kind == "f" else rng.integers(0, 2, shape)
        found[name] = drawn.astype(spec.dtype)
    return found


def _joined(real: Batch, padding: Batch) -> dict[str, Array]:
    return {name: np.concatenate([array, padding[name]]) for name, array in real.items()}


def _gap(one: Array, other: Array) -> float:
    """Returns the largest difference of two arrays; NaN equals NaN, and differs from a number by infinity."""
    a, b = (np.asarray(each).astype(np.float64) for each in (one, other))
    if a.shape != b.shape:
        return float("inf")
    gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.max(np.nan_to_num(gaps, nan=np.inf), initial=0.0))


def _is_off(one: Array, other: Array) -> bool:
    """Tells whether two arrays differ by more than the rounding of sums in another order."""
    size = np.max(np.abs(np.nan_to_num(np.asarray(other).astype(np.float64))), initial=0.0)
    return _gap(one, other) > _ROUNDING * float(size)
