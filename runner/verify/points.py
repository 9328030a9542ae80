"""Points: states with randomly perturbed weights, at which a wrong gradient can't hide. Plain NumPy.

Where training begins, much is at a kink or in a symmetry. With biases of 0, every black pixel is exactly where a ReLU
bends, so the last bit decides whether it counts, and the gradient of the bias verifies nothing. At a point, every
parameter is moved by a seeded normal step of a good share of its layer's size (a bias by its kernel's). Variables that
no gradient changes, such as moving statistics, are taken from the end of a training on one device, and so are valid.
Slots and averages are large enough to count beside the gradient. The points are made once and loaded on both sides.
From there both sides take the gradients, and then one step, so no training amplifies the rounding between the two.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array
from runner.layout.paths import ema_path, is_ema, is_slot, owner_of
from runner.verify.rounding import layer_sizes

# One late in the training and one early. Two, so that a gradient that is 0 by chance at one is not at both; each costs
# a step of both sides and of every perturbed run.
COUNT = 2
# How far each parameter is moved from its initial value, as a share of the root mean square of its layer. 0.3 leaves
# kinks and symmetries well behind while the weights keep their scale. Where the loss is not finite there, the next
# smaller share is tried.
SHARES = (0.3, 0.1, 0.03)
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
PADDING = "padding/"
# A layer whose size is below `_ZERO_LAYER` was initialized to zero, and a share of that would move nothing. It is
# moved as if it had the size of a common initialization.
_ZERO_LAYER = 1e-3
_COMMON_SIZE = 0.05
# How far averages are from the weights, as a share of their size: so that one that is left out, or stale, changes the
# evaluation visibly.
_AVERAGE_SHARE = 0.3
# Slots in units of their layer's size, lowest and highest: of values that have no sign, and of others.
_POSITIVE_SLOTS = (0.5, 1.5)
_SIGNED_SLOTS = (-0.5, 0.5)


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


@dataclass(frozen=True)
class Entry:
    """What one array of a run is.

    Attributes:
      kind: see `runner.verify.compare.Check`.
      variable: canonical path of the variable that it belongs to; empty: none.
      step: place in the order of computation.
      before: key of the value before the training or step, from which its movement is measured; empty: there is none.
      is_stored: whether it is of weights or slots, stored in the dtype of `engine.state`.
    """

    kind: str
    variable: str
    step: float
    before: str = ""
    is_stored: bool = False

    @property
    def is_loss(self) -> bool:
        """Whether it has losses or metrics, one number per step."""
        return self.kind in ("loss", "evaluation") or (self.kind == "point" and not self.variable)


def described(key: str, run: Mapping[str, Array]) -> Entry:
    """Returns what the array of a key is in a run."""
    group, _, path = key.partition("/")
    if is_of_point(key):
        number, part, path = parsed(key)
        kind, step = _PARTS.get(part, _PARTS[GRADIENT])
        if part == END:
            # Moving averages of weights are stored in float32.
            return Entry(kind, owner_of(path), step, prefix(number, START) + path, is_stored=not is_ema(path))
        return Entry(kind, "" if part == EVALUATED else owner_of(path), step)
    if group == "initial":
        return Entry("initial", path, 0.0)
    if group in (LOSS, METRIC):
        return Entry("loss", "", 1.0)
    if group in (GRADIENT, STEPPED):
        return Entry(group, path, _FIRST_CHANGES)
    if key.startswith(PADDING):
        return Entry("padding", owner_of(path), _PADDED)
    # Half a step after the last one.
    end = len(run[LOSS]) + 0.5
    if is_slot(key):
        return Entry("slot", owner_of(key), end, is_stored=True)
    before = f"initial/{path}"
    if is_ema(key):
        return Entry("average", path, end, before)
    if is_trained(path, run):
        return Entry("parameter", path, end, before, is_stored=True)
    return Entry("statistic", path, end, before)


def is_trained(path: str, run: Mapping[str, Array]) -> bool:
    """Returns whether a run's steps train a variable."""
    return f"{GRADIENT}/{path}" in run or f"{STEPPED}/{path}" in run


def prefix(point: int, part: str) -> str:
    """Returns the start of a part's keys, such as `point0/gradient/`."""
    return f"point{point}/{part}/"


def parsed(key: str) -> tuple[int, str, str]:
    """Returns the point, the part and the path of a key: 1, 'end', 'd1/kernel' of point1/end/d1/kernel."""
    point, part, path = (*key.split("/", 2), "")[:3]
    return int(point.removeprefix("point")), part, path


def is_of_point(key: str) -> bool:
    """Returns whether a key is of an array of a point; those of variables begin with what the array is of them."""
    return key.startswith("point")


def is_of_one_side(key: str) -> bool:
    """Returns whether one side alone makes a key's array, so that it has no counterpart on the other."""
    return key.startswith(PADDING) or (is_of_point(key) and parsed(key)[1] in (STEP, START, TINY))


def numbers(keys: Iterable[str]) -> list[int]:
    """Returns the numbers of the points in a run's arrays, by their keys."""
    return sorted({parsed(key)[0] for key in keys if is_of_point(key)})


def step_of(arrays: Mapping[str, Array], point: int) -> int:
    """Returns the steps that were done before a point."""
    return int(arrays[f"point{point}/{STEP}"])


def part(arrays: Mapping[str, Array], point: int, name: str) -> dict[str, Array]:
    """Returns a part's arrays by path."""
    start = prefix(point, name)
    return {key.removeprefix(start): value for key, value in arrays.items() if key.startswith(start)}


def keyed(point: int, name: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns arrays by path as a part of a point."""
    start = prefix(point, name)
    return {start + path: value for path, value in arrays.items()}


def steps(done: int) -> list[int]:
    """Returns the step of each point in a training of `done` steps: the last one, and an early one but not the first.

    Step 0 is a special case of Adam's bias correction and of averages, which begin there.
    """
    return [done - 1, (done - 1) // 2][:COUNT]


def perturbed_weights(weights: Mapping[str, Array], share: float, rng: np.random.Generator) -> dict[str, Array]:
    """Returns weights a normal step away, of a share of the root mean square of their layer's weights."""
    sizes = layer_sizes(weights)
    perturbed = {}
    for path, value in weights.items():
        size = sizes[path] if sizes[path] > _ZERO_LAYER else _COMMON_SIZE
        perturbed[path] = (value + share * size * rng.normal(size=value.shape)).astype(value.dtype)
    return perturbed


def slots(trained: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Returns slots of the sizes that they have at the end of the training, by path.

    Values that are never negative, such as means of squares, are drawn between half and one and a half of the root
    mean square of their layer's slots; others around 0, up to half of it. So no entry is so small that rounding
    decides a step. A mean of gradients stays below the root of their mean square, as centered RMSprop needs. Integers
    stay.
    """
    sizes = layer_sizes(trained)
    values = {}
    for path, value in trained.items():
        if value.dtype.kind == "f":
            low, high = _SIGNED_SLOTS
            if (value >= 0).all():
                low, high = _POSITIVE_SLOTS
            value = (sizes[path] * rng.uniform(low, high, value.shape)).astype(value.dtype)
        values[path] = value
    return values


def averages(weights: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Returns moving averages of weights, a random step away from the weights."""
    perturbed = perturbed_weights(weights, _AVERAGE_SHARE, rng)
    return {ema_path(path): value for path, value in perturbed.items()}
