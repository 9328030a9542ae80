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
- `pointN/exact/<path>`: one device's gradients in float64, of variables whose terms may cancel;
- `pointN/evaluated/<metric>`, (1,): an evaluation of examples that do not fill their last batch.

Padding is part of no mean, and changes nothing that a step keeps. Training's first steps need not have any. So with
`dataset.remainder=pad` the batch of the first point ends in padding, on both sides, and the mesh takes that step again
with other examples in the padding: `padding/<path>`, the state after it, must be bitwise identical.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from runner.data.base import Array
from runner.engine.optim.rules import Slot
from runner.layout.paths import (
    ema_path,
    slot_path,
)
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
EXACT = "exact"
EVALUATED = "evaluated"
# Prefix of the state after a step with other padding.
PADDING = "padding/"
_KEY = re.compile(rf"point(\d+)/({STEP}|{START}|{LOSS}|{GRADIENT}|{END}|{EXACT}|{EVALUATED})(?:/(.*))?$")
# A layer whose size is below `_ZERO_LAYER` was initialized to zero, and a share of that would move nothing. It is
# moved as if it had the size of a common initialization.
_ZERO_LAYER = 1e-3
_COMMON_SIZE = 0.05
# How far slots and averages are from what the gradients and weights at the point would give, as a share of their own
# size: large enough that a slot that is left out, or stale, changes the step visibly.
_SLOT_SHARE = 0.3
# Size of weights' changes, about that of a step with a usual learning rate.
_CHANGE_SIZE = 0.01


def prefix(point: int, part: str) -> str:
    """Returns the start of a part's keys, such as `point0/gradient/`."""
    return f"point{point}/{part}/"


def parsed(key: str) -> tuple[int, str, str]:
    """Returns the point, the part and the path of a key: 1, 'end', 'optimizer/m/d1/kernel' of
    point1/end/optimizer/m/d1/kernel.
    """
    match = _KEY.match(key)
    assert match is not None
    return int(match[1]), match[2], match[3] or ""


def is_of_point(key: str) -> bool:
    """Returns whether a key is of an array of a point."""
    return _KEY.match(key) is not None


def is_of_one_side(key: str) -> bool:
    """Returns whether one side alone makes a key's array, so that it has no counterpart on the other."""
    return key.startswith(PADDING) or (is_of_point(key) and parsed(key)[1] in (STEP, START, EXACT))


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


def slots(
    kinds: Sequence[Slot],
    gradients: Mapping[str, Array],
    weights: Mapping[str, Array],
    rate: float,
    rng: np.random.Generator,
) -> dict[str, Array]:
    """Returns an optimizer's slots as they may be after many steps with gradients like these.

    `runner.engine.optim.keras_classes` has their names. SGD's momentum is a step, not a gradient, so it has the
    `rate`.
    """
    names = {slot.name for slot in kinds}
    sizes = layer_sizes(gradients)
    values: dict[str, Array] = {}
    for path, gradient in gradients.items():
        size = sizes[path] or 1.0
        square = size**2 * rng.uniform(0.5, 1.5, gradient.shape)
        # With RMSprop (which has `velocity`) momentum is made of normalized gradients.
        momentum_size = 1.0 if "velocity" in names else size
        # Every kind is drawn, kept or not: the values of one slot then do not depend on which others there are.
        normal = rng.normal(size=gradient.shape)
        # Below the root of the mean square, as an average of the same gradients is: centered RMSprop takes the root of
        # the difference of the two.
        average = _SLOT_SHARE * np.sqrt(square) * rng.uniform(-1.0, 1.0, gradient.shape)
        other_normal = rng.normal(size=gradient.shape)
        by_name = {
            "m": size * normal,
            "v": square,
            "v_hat": square,
            "velocity": square,
            "average": average,
            "momentum": rate * momentum_size * other_normal,
            # Of Adamax: the largest gradient so far.
            "u": np.sqrt(square),
            # Of Adagrad and Ftrl: sums of squares.
            "accumulator": square,
            # Of Adadelta: squares of gradients, and of changes before they are multiplied by the rate.
            "accumulated_grad": square,
            "accumulated_delta_var": _CHANGE_SIZE**2 * square / size**2,
            # Of Ftrl, whose weights are about -linear * rate / sqrt(accumulator).
            "linear": -weights[path] * np.sqrt(square) / rate + size * normal,
            # Of schedule-free AdamW: where the weights would be without the average over steps.
            "z": weights[path] + _CHANGE_SIZE * normal,
            # Of Adafactor: means of squares over a dim.
            "r": square,
            "c": square,
        }
        for slot in kinds:
            if path in slot.dims and slot.name in by_name:
                whole = by_name[slot.name]
                missing = set(range(gradient.ndim)) - set(slot.dims[path])
                values[slot_path(slot.name, path)] = whole.mean(axis=tuple(missing)).astype(gradient.dtype)
    return values


def slots_near(
    kinds: Sequence[Slot], trained: Mapping[str, Array], known: Mapping[str, Array], rng: np.random.Generator
) -> dict[str, Array]:
    """Returns values of slots whose meaning is not known: those of the training, each multiplied by a random factor.

    Signs stay, so that squares stay squares; integers stay as they are.
    """
    values = {}
    for slot in kinds:
        for path in slot.paths:
            key = slot_path(slot.name, path)
            if key in known:
                continue
            value = trained[key]
            if value.dtype.kind == "f":
                factor = rng.uniform(1 - _SLOT_SHARE, 1 + _SLOT_SHARE, value.shape)
                value = (value * factor).astype(value.dtype)
            values[key] = value
    return values


def averages(weights: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Returns moving averages of weights, as far from the weights as `slots` from their gradients."""
    perturbed = perturbed_weights(weights, _SLOT_SHARE, rng)
    return {ema_path(path): value for path, value in perturbed.items()}
