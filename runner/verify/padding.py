"""Padding is no part of any mean, and touches nothing that is kept.

Training's first steps need not hold any. So with `dataset.remainder=pad` the batch of the first generic point ends in
padding, on both sides; and the mesh takes that step again with other examples in the padding. What that leaves,
`padding/<path>`, is equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.data.base import WEIGHT, Array
from runner.optim.paths import owner_of
from runner.verify import points
from runner.verify.compare import Check, equal
from runner.verify.request import Request

PREFIX = "padding/"
_SHARE = 4  # the last of so many parts of a batch is padding


def at_point(request: Request, given: Mapping[str, Array], number: int) -> Request:
    """Returns the request with the batches of a point: where a run pads, that of the first one ends in padding.

    Args:
      request: config and batches.
      given: arrays of the points.
      number: of the point.
    """
    if request.config.dataset.remainder != "pad" or number != points.numbers(given)[0]:
        return request
    batches = request.batches
    rows = (points.step_of(given, number), slice(_kept(request), None))
    weights = batches.weights.copy()
    held = batches.arrays[WEIGHT].copy()
    weights[rows] = held[rows] = 0
    return replace(request, batches=replace(batches, arrays={**batches.arrays, WEIGHT: held}, weights=weights))


def refilled(request: Request, step: int) -> Request:
    """Returns a padded request with other examples in the padding: those that its batch begins with."""
    batches = request.batches
    kept = _kept(request)
    arrays = {name: array.copy() for name, array in batches.arrays.items()}
    for name in arrays.keys() - {WEIGHT}:
        arrays[name][step, kept:] = batches.arrays[name][step, : batches.weights.shape[1] - kept]
    return replace(request, batches=replace(batches, arrays=arrays))


def _kept(request: Request) -> int:
    size: int = request.batches.weights.shape[1]
    return max(size - max(1, size // _SHARE), 1)


def checks(mesh: Mapping[str, Array]) -> list[Check]:
    """Returns a check of everything that a step keeps; nothing where no step was taken again."""
    again = {key.removeprefix(PREFIX): value for key, value in mesh.items() if key.startswith(PREFIX)}
    end = points.part(mesh, points.numbers(mesh)[0], points.END) if again else {}
    return [equal("padding", PREFIX + path, owner_of(path), 1.8, end[path], value) for path, value in again.items()]


def compared(mesh: Mapping[str, Array]) -> dict[str, Array]:
    """Returns what is compared with another side: all but the step that was taken again."""
    return {key: value for key, value in mesh.items() if not key.startswith(PREFIX)}
