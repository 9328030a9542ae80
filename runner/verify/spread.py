"""Differences of one device from itself under noise: by rank of the entries, and in the size of a whole array."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from runner.data.base import Array
from runner.layout.paths import is_ema
from runner.verify import points

# Quantiles of the entries' differences that are compared, by the name that the table shows. A wrong engine moves most
# entries, which `half` and `90%` show. The few entries that rounding throws far off count in `99%` and `all` alone.
RANKS: Mapping[str, float] = {"half": 0.5, "90%": 0.9, "99%": 0.99, "all": 1.0}

Trajectory = Mapping[str, Array]


def spread(single: Trajectory, runs: Iterable[Trajectory]) -> dict[str, Array]:
    """Returns the largest differences of perturbed runs, used one at a time, from the single device's run, by key.

    Of losses that is the difference of each step (steps,); of any other array the difference at each rank and the
    relative change of its size (5,).
    """
    widest: dict[str, Array] = {}
    for run in runs:
        for key, value in run.items():
            # A metric that is NaN or Inf on the single device is missing there, and is not compared.
            if key.startswith("initial/") or key not in single:
                continue
            differences = _differences(single, key, value)
            if key in widest:
                differences = np.maximum(widest[key], differences)
            widest[key] = differences
    return widest


def is_loss(key: str) -> bool:
    """Returns whether a key is of losses, one per step, or of an evaluation's loss or metric."""
    if points.is_of_point(key):
        return points.parsed(key)[1] in (points.LOSS, points.EVALUATED)
    return key == "loss" or key.startswith(f"{points.METRIC}/")


def _differences(single: Trajectory, key: str, value: Array) -> Array:
    if is_loss(key):
        return np.asarray(np.abs(value.astype(np.float64) - single[key]))
    growth = relative_growth(value, single[key], movement(single, key))
    return np.append(at_ranks(value, single[key]), abs(growth))


def movement(run: Trajectory, key: str) -> Array:
    """Returns an array less its value before the training or step; of a gradient or slot of a training, all of it."""
    value = run[key].astype(np.float64)
    before: Array | float = 0.0
    if key.startswith("final/"):
        before = run[f"initial/{key.removeprefix('final/')}"].astype(np.float64)
    elif is_ema(key):
        before = run[f"initial/{key.partition('/')[2]}"].astype(np.float64)
    elif points.is_of_point(key):
        number, part, path = points.parsed(key)
        if part == points.END:
            before = run[points.prefix(number, points.START) + path].astype(np.float64)
    return np.asarray(value - before)


def at_ranks(values: Array, reference: Array) -> Array:
    """Returns the largest difference of the closest half, 90%, 99% and all of the entries; NaN counts as infinite."""
    difference = np.abs(values.astype(np.float64) - reference.astype(np.float64)).ravel()
    if not difference.size:
        return np.zeros(len(RANKS))
    difference[np.isnan(difference)] = math.inf
    places = [math.ceil(share * difference.size) - 1 for share in RANKS.values()]
    return np.asarray(np.partition(difference, places)[places])


def relative_growth(values: Array, reference: Array, along: Array) -> float:
    """Returns by what share of `along` values are longer than the reference, in its direction; 0 where it is zero.

    The noise of single entries mostly cancels in this projection, so it shows a gradient that is off by 1%.
    """
    square = float(np.sum(np.square(along)))
    if not square:
        return 0.0
    difference = values.astype(np.float64) - reference.astype(np.float64)
    return float(np.sum(difference * along)) / square
