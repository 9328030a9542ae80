"""What one device differs by from itself under noise: by rank of the entries, and in the size of the whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from runner.data.base import Array
from runner.optim.paths import is_ema
from runner.verify import points

RANKS: Mapping[str, float] = {"half": 0.5, "90%": 0.9, "99%": 0.99, "all": 1.0}

Trajectory = Mapping[str, Array]


def spread(single: Trajectory, runs: Iterable[Trajectory]) -> dict[str, Array]:
    """Returns the largest differences of runs from one, by key.

    Args:
      single: arrays of a run, see `runner.verify.compare.compare`.
      runs: the same with noise, used one at a time.

    Returns:
      Of losses the difference of each step (steps,); of another array that of each rank, and `longer`.
    """
    widest: dict[str, Array] = {}
    for run in runs:
        for key, value in run.items():
            # A metric that is no number on the single device is compared with nothing.
            if not key.startswith("initial/") and key in single:
                found = _differences(single, key, value)
                widest[key] = np.maximum(widest[key], found) if key in widest else found
    return widest


def is_loss(key: str) -> bool:
    """Returns whether a key is of losses, one per step, or of an evaluation's loss or metric."""
    return key == "loss" or (points.is_of_point(key) and points.parsed(key)[1] in (points.LOSS, points.EVALUATED))


def _differences(single: Trajectory, key: str, value: Array) -> Array:
    if is_loss(key):
        return np.asarray(np.abs(value.astype(np.float64) - single[key]))
    return np.append(at_ranks(value, single[key]), abs(longer(value, single[key], movement(single, key))))


def movement(run: Trajectory, key: str) -> Array:
    """Returns what an array has become, less what it was before; of a gradient or a slot of a training, all of it."""
    value = run[key].astype(np.float64)
    if key.startswith("final/"):
        return np.asarray(value - run[f"initial/{key.removeprefix('final/')}"].astype(np.float64))
    if is_ema(key):
        return np.asarray(value - run[f"initial/{key.partition('/')[2]}"].astype(np.float64))
    if points.is_of_point(key) and points.parsed(key)[1] == points.END:
        number, _, path = points.parsed(key)
        return np.asarray(value - run[points.prefix(number, points.START) + path].astype(np.float64))
    return np.asarray(value)


def at_ranks(values: Array, reference: Array) -> Array:
    """Returns the largest difference of the closest half, 90%, 99% and all of the entries; NaN counts as infinite."""
    difference = np.abs(values.astype(np.float64) - reference.astype(np.float64)).ravel()
    if not difference.size:
        return np.zeros(len(RANKS))
    difference[np.isnan(difference)] = math.inf
    places = [math.ceil(share * difference.size) - 1 for share in RANKS.values()]
    return np.asarray(np.partition(difference, places)[places])


def longer(values: Array, reference: Array, along: Array) -> float:
    """Returns by what share of `along` values are longer than the reference, in its direction; 0 where it is zero."""
    square = float(np.sum(np.square(along)))
    difference = values.astype(np.float64) - reference.astype(np.float64)
    return float(np.sum(difference * along)) / square if square else 0.0
