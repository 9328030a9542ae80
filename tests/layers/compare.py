"""Holds what an engine computed against stock Keras, case by case."""

from __future__ import annotations

import numpy as np

from runner.data.base import Array
from tests.layers.network import UNITS
from tests.layers.setup import Arrays, Setup

_ULPS = 8.0  # of a value that is stored: each step rounds it a few times
_ZERO = 0.01  # of the tolerance: where a gradient is zero in mathematics, of the case's largest one, or largest move


def differences(setup: Setup, found: Arrays, expected: Arrays) -> list[tuple[float, str]]:
    """Returns for each case the largest difference over its tolerance, and what differs so; sound is up to 1.

    A tolerance is a case's own, times the largest entry of the array, or of what it moved by in training; it is that
    of one float32 sum in another order, and far below a wrong sign or a size that is off by 1%.

    Raises:
      ValueError: the two do not hold the same arrays.
    """
    keys = {key for key in expected if not key.startswith("start/")} - ({"outputs"} - set(found))
    if set(found) != keys:
        raise ValueError(f"the engine and stock Keras differ in {sorted(set(found) ^ keys)[:5]}")
    worst = [(0.0, "")] * len(setup.cases)
    for number, case in enumerate(setup.cases):
        mine = [key for key in keys if setup.owner(key.partition("/")[2]) == number]
        sizes = {key: _changed(expected, key) for key in mine}
        for key in mine:
            alike = [size for other, size in sizes.items() if other.startswith("final/") == key.startswith("final/")]
            allowed = case.tolerance * (sizes[key] + _ZERO * max(alike)) + _ulps(expected[key])
            worst[number] = max(worst[number], (_ratio(found[key], expected[key], allowed), key))
        if "outputs" not in found:
            continue
        columns = slice(UNITS * number, UNITS * (number + 1))
        mine_out, held = found["outputs"][:, columns], expected["outputs"][:, columns]
        allowed = case.tolerance * _size(held) + _ulps(held)
        worst[number] = max(worst[number], (_ratio(mine_out, held, allowed), "outputs"))
    return worst


def _changed(expected: Arrays, key: str) -> float:
    """Returns the largest entry of a gradient, or the most that a variable moved by."""
    if not key.startswith("final/"):
        return _size(expected[key])
    return _size(expected[key].astype(np.float64) - expected[key.replace("final/", "start/", 1)])


def loss_ratio(setup: Setup, found: Arrays, expected: Arrays) -> float:
    """Returns the largest difference of a step's loss over its tolerance."""
    tolerance = max(case.tolerance for case in setup.cases)
    return _ratio(found["loss"], expected["loss"], tolerance * _size(expected["loss"]))


def unowned(setup: Setup, expected: Arrays) -> list[str]:
    """Returns the variables that no case is known to own."""
    paths = {key.partition("/")[2] for key in expected if "/" in key}
    return sorted(path for path in paths if setup.owner(path) is None)


def not_finite(expected: Arrays) -> list[str]:
    """Returns what stock Keras computes as no number."""
    kinds = ((key, np.asarray(value)) for key, value in expected.items())
    return [key for key, value in kinds if _is_float(value) and not np.isfinite(value.astype(np.float64)).all()]


def _is_float(value: Array) -> bool:
    return value.dtype.kind == "f" or "float" in value.dtype.name


def _ulps(value: Array) -> float:
    if not _is_float(value):
        return 0.0
    return _ULPS * float(_epsilon(value)) * _size(value)


def _epsilon(value: Array) -> float:
    return 2.0**-7 if value.dtype.name == "bfloat16" else float(np.finfo(value.dtype).eps)


def _size(value: Array) -> float:
    return float(np.max(np.abs(value.astype(np.float64)))) if value.size else 0.0


def _ratio(found: Array, expected: Array, allowed: float) -> float:
    if found.shape != expected.shape:
        return float("inf")
    if not found.size:
        return 0.0
    difference = float(np.max(np.abs(found.astype(np.float64) - expected.astype(np.float64))))
    if difference == 0:
        return 0.0
    ratio = difference / allowed if allowed else float("inf")
    return ratio if np.isfinite(ratio) else float("inf")
