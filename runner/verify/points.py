"""Points: states with randomly perturbed weights, at which a wrong gradient can't hide. Plain NumPy.

`runner.verify.meshproof.perturb` says why. Variables that no gradient changes, such as moving statistics, are taken
from the end of a training on one device, and so are valid. From a point both sides take the gradients, and then one
step.

A custom step has no single gradient of each variable. Its training has `stepped/<path>` in place of `gradient/<path>`,
the change in the first step, and `metric/<name>` of each step in addition; its points have no gradients. Other tasks
have `metric/<name>` of the norms of gradients that the run logs.

Arrays of point N, by key:

- `pointN/step`: steps done before;
- `pointN/start/<path>`: the state;
- `pointN/loss`, `pointN/gradient/<path>`;
- `pointN/end/<path>`: the state after the step;
- `pointN/tiny/<path>`: gradients that may be no more than what rounding leaves of terms that cancel, of one device's
  own run and of the perturbed runs as they come, see `rounding.gradients_with_noise`;
- `pointN/evaluated/<metric>`, (1,): an evaluation of examples that do not fill their last batch.

Padding is part of no mean, and changes nothing that a step keeps. Training's first steps need not have any. So with
`dataset.remainder=pad` the batch of the first point ends in padding, on both sides, and the mesh takes that step again
with other examples in the padding: `padding/<path>`, the state after it, must be bitwise identical.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import partial

import numpy as np

from runner.data.base import Array
from runner.layout.paths import ema_path, is_ema, is_slot, owner_of
from runner.verify.meshproof import differences, perturb
from runner.verify.meshproof.differences import Check, Entry
from runner.verify.meshproof.rounding import Rounding

# Prefixes of what the first step changes, with a custom step, and of a metric of every step.
STEPPED = "stepped"
METRIC = "metric"
STEP = "step"
START = "start"
LOSS = "loss"
GRADIENT = "gradient"
END = "end"
TINY = "tiny"
EVALUATED = "evaluated"
# Prefix of the state after a step with other padding.
PADDING = "padding"
# How far averages are from the weights, as a share of their size: so that one that is left out, or stale, changes the
# evaluation visibly.
_AVERAGE_SHARE = 0.3


# Part of a point -> kind of its check, and its place in the order of computation: between the first two steps.
_PARTS = {
    LOSS: ("point", 1.55),
    GRADIENT: ("point", 1.6),
    TINY: (TINY, 1.6),
    EVALUATED: ("evaluation", 1.65),
    END: ("update", 1.7),
}
_FIRST_CHANGES = 1.5
_PADDED = 1.8


def described(key: str, run: Mapping[str, Array]) -> Entry:
    """Returns what the array of a key is in a run."""
    group, _, path = key.partition("/")
    if is_of_point(key):
        return _of_point(key, run)
    if group == "initial":
        # Drawn from the seed, each as one full array.
        return Entry("initial", path, 0.0, exact=key)
    if group in (LOSS, METRIC):
        return Entry("loss", "", 1.0)
    if group in (GRADIENT, STEPPED):
        return Entry(group, path, _FIRST_CHANGES)
    if group == PADDING:
        end = f"{prefix(min(numbers(run)), END)}/{path}"
        return Entry("padding", owner_of(path), _PADDED, one_sided=True, exact=end)
    # Half a step after the last one.
    end_step = len(run[LOSS]) + 0.5
    if is_slot(key):
        return Entry("slot", owner_of(key), end_step, is_stored=True)
    before = f"initial/{path}"
    if is_ema(key):
        return Entry("average", path, end_step, before)
    if is_trained(path, run):
        return Entry("parameter", path, end_step, before, is_stored=True)
    return Entry("statistic", path, end_step, before, is_sum=True)


def _of_point(key: str, run: Mapping[str, Array]) -> Entry:
    number, part, path = parsed(key)
    kind, step = _PARTS.get(part, _PARTS[GRADIENT])
    one_sided = part in (STEP, START, TINY)
    owner = owner_of(path)
    if part == END:
        # Moving averages of weights are stored in float32.
        before = f"{prefix(number, START)}/{path}"
        return Entry(kind, owner, step, before, is_stored=not is_ema(path), is_sum=not is_trained(owner, run))
    if part == EVALUATED:
        return Entry(kind, "", step)
    tiny = ""
    if part == GRADIENT:
        tiny = f"{prefix(number, TINY)}/{path}"
    return Entry(kind, owner, step, one_sided=one_sided, tiny=tiny)


def spread(
    single: Mapping[str, Array], runs: Iterable[Mapping[str, Array]], earlier: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Returns the differences of perturbed runs from the single device's, see `meshproof.differences.spread`."""
    return differences.spread(single, runs, partial(described, run=single), earlier)


def compare(
    reference: Mapping[str, Array], spread: Mapping[str, Array], mesh: Mapping[str, Array], rounding: Rounding
) -> list[Check]:
    """Compares every array of a run whose keys are those of this module, see `meshproof.differences.compare`."""
    return differences.compare(reference, spread, mesh, rounding, partial(described, run=reference))


def is_trained(path: str, run: Mapping[str, Array]) -> bool:
    """Returns whether a run's steps train a variable."""
    return f"{GRADIENT}/{path}" in run or f"{STEPPED}/{path}" in run


def prefix(point: int, part: str) -> str:
    """Returns what a part's keys are below, such as `point0/gradient`."""
    return f"point{point}/{part}"


def parsed(key: str) -> tuple[int, str, str]:
    """Returns the point, the part and the path of a key: 1, 'end', 'd1/kernel' of point1/end/d1/kernel."""
    point, part, path = (*key.split("/", 2), "")[:3]
    return int(point.removeprefix("point")), part, path


def is_of_point(key: str) -> bool:
    """Returns whether a key is of an array of a point; those of variables begin with what the array is of them."""
    return key.startswith("point")


def numbers(keys: Iterable[str]) -> list[int]:
    """Returns the numbers of the points in a run's arrays, by their keys."""
    return sorted({parsed(key)[0] for key in keys if is_of_point(key)})


def step_of(arrays: Mapping[str, Array], point: int) -> int:
    """Returns the steps that were done before a point."""
    return int(arrays[f"point{point}/{STEP}"])


def of_end(state: Mapping[str, Array], variables: Container[str]) -> dict[str, Array]:
    """Returns the state after a training by key: `final/<path>` of the model's variables, `<path>` of all else."""
    found = {}
    for path, value in state.items():
        found[f"final/{path}" if path in variables else path] = value
    return found


def averages(weights: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Returns moving averages of weights, a random step away from the weights."""
    perturbed = perturb.weights(weights, _AVERAGE_SHARE, rng)
    return dict(zip(map(ema_path, perturbed), perturbed.values(), strict=True))
