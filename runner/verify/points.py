"""Generic points: states at which a wrong gradient can't hide, made once and loaded on both sides. Plain NumPy.

Where training begins, much lies on a kink or in a symmetry: with biases of 0 every black pixel is exactly where a ReLU
bends, so the last bit decides whether it counts, and the gradient of the bias proves nothing. Here every parameter is
moved by a seeded normal step of a good share of its layer's size (a bias by its kernel's). What no gradient changes,
as moving statistics, is taken from the end of a training on one device, and so is valid. Slots and averages are made
large enough to count beside the gradient. From there both sides take the gradients, and then one step: nothing that
training amplified lies between the two.

Arrays of point N, by key: `pointN/step`, steps done before; `pointN/start/<path>`, the state; `pointN/loss`;
`pointN/gradient/<path>`; `pointN/end/<path>`, the state after the step; `pointN/exact/<path>`, one device's gradients
in float64, of variables whose terms may cancel; `pointN/evaluated/<metric>`, (1,), an evaluation of examples that do
not fill their last batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from runner.data.base import Array
from runner.optim.paths import ema_path, slot_path
from runner.verify.rounding import layer_sizes

COUNT = 2
SHARES = (0.3, 0.1, 0.03)  # of a layer's size; the next where the loss is not finite
STEP = "step"
START = "start"
LOSS = "loss"
GRADIENT = "gradient"
END = "end"
EXACT = "exact"
EVALUATED = "evaluated"
_KEY = re.compile(rf"point(\d+)/({STEP}|{START}|{LOSS}|{GRADIENT}|{END}|{EXACT}|{EVALUATED})(?:/(.*))?$")
# a layer of less than that is taken to begin at zero, and moves as if it had this size
_SMALL = 1e-3
_USUAL = 0.05
_SAME = 0.3  # how far slots and averages are off, in their own size


def prefix(point: int, part: str) -> str:
    """Returns what keys of a part begin with, as `point0/gradient/`."""
    return f"point{point}/{part}/"


def parsed(key: str) -> tuple[int, str, str]:
    """Returns the point, the part and the path of a key.

    Example:
      >>> parsed("point1/end/optimizer/m/d1/kernel")
      (1, 'end', 'optimizer/m/d1/kernel')
    """
    found = _KEY.match(key)
    assert found is not None
    return int(found[1]), found[2], found[3] or ""


def is_of_point(key: str) -> bool:
    """Tells whether a key is of an array of a point."""
    return _KEY.match(key) is not None


def is_given(key: str) -> bool:
    """Tells whether a key is of what the reference alone gives: it is not compared."""
    return is_of_point(key) and parsed(key)[1] in (STEP, START, EXACT)


def numbers(arrays: Iterable[str]) -> list[int]:
    """Returns the points that a run's arrays hold, by their keys."""
    return sorted({parsed(key)[0] for key in arrays if is_of_point(key)})


def step_of(arrays: Mapping[str, Array], point: int) -> int:
    """Returns the steps that were done before a point."""
    return int(arrays[f"point{point}/{STEP}"])


def part(arrays: Mapping[str, Array], point: int, name: str) -> dict[str, Array]:
    """Returns a part's arrays by path."""
    first = prefix(point, name)
    return {key.removeprefix(first): value for key, value in arrays.items() if key.startswith(first)}


def keyed(point: int, name: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns arrays by path as a part of a point."""
    return {prefix(point, name) + path: value for path, value in arrays.items()}


def steps(done: int) -> list[int]:
    """Returns the steps of a training of so many at which the points stand: late, and early but not first."""
    return [done - 1, (done - 1) // 2][:COUNT]


def moved(weights: Mapping[str, Array], share: float, rng: np.random.Generator) -> dict[str, Array]:
    """Returns weights a normal step away, of a share of their layer's size.

    Args:
      weights: trainable variables by canonical path.
      share: of the root mean square of their layer's weights.
      rng: source of the step.
    """
    sizes = layer_sizes(weights)
    return {
        path: (value + share * _size(sizes[path]) * rng.normal(size=value.shape)).astype(value.dtype)
        for path, value in weights.items()
    }


def _size(size: float) -> float:
    return size if size > _SMALL else _USUAL


def slots(
    kept: Iterable[str], gradients: Mapping[str, Array], rate: float, rng: np.random.Generator
) -> dict[str, Array]:
    """Returns an optimizer's slots as they may be after many steps with gradients like these.

    Args:
      kept: names of the slots, of `runner.optim.rules`.
      gradients: by canonical path.
      rate: learning rate; SGD's momentum is a step, not a gradient.
      rng: source of the values.
    """
    names = set(kept)
    sizes = layer_sizes(gradients)
    found: dict[str, Array] = {}
    for path, gradient in gradients.items():
        size = sizes[path] or 1.0
        square = size**2 * rng.uniform(0.5, 1.5, gradient.shape)
        made = {
            "m": size * rng.normal(size=gradient.shape),
            "v": square,
            "velocity": square,
            # Less than the root of the mean square, as an average of the same gradients is.
            "average": _SAME * np.sqrt(square) * rng.uniform(-1.0, 1.0, gradient.shape),
            "momentum": rate * (1.0 if "velocity" in names else size) * rng.normal(size=gradient.shape),
        }
        found |= {slot_path(name, path): made[name].astype(gradient.dtype) for name in names}
    return found


def averages(weights: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Returns moving averages of weights, as far off as the weights move."""
    return {ema_path(path): value for path, value in moved(weights, _SAME, rng).items()}
