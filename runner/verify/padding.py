"""Padding check: padding is not part of any mean, and changes nothing that a step keeps.

Training's first steps need not have any padding. So with `dataset.remainder=pad` the batch of the first point ends in
padding, on both sides. The mesh takes that step again with other examples in the padding. The state after it,
`padding/<path>`, must be bitwise identical.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.data.base import WEIGHT, Array
from runner.layout.paths import owner_of
from runner.verify import points
from runner.verify.compare import Check, identical
from runner.verify.request import Request

PREFIX = "padding/"
# The last quarter of the batch is padding: at least the whole share of one device where a batch is split into 4 parts
# or more. Most examples are left for the comparison with one device.
_PADDED_PARTS = 4
# Place of the check among the failures, see `Check.step`: after the step from the point.
_ORDER = 1.8


def at_point(request: Request, point_arrays: Mapping[str, Array], number: int) -> Request:
    """Returns the request with the batches of a point: where a run pads, the first point's batch ends in padding."""
    if request.config.dataset.remainder != "pad" or number != points.numbers(point_arrays)[0]:
        return request
    batches = request.batches
    padded = (points.step_of(point_arrays, number), slice(_real_examples(request), None))
    weights = batches.weights.copy()
    weights[padded] = 0
    example_weights = batches.arrays[WEIGHT].copy()
    example_weights[padded] = 0
    arrays = {**batches.arrays, WEIGHT: example_weights}
    return replace(request, batches=replace(batches, arrays=arrays, weights=weights))


def refilled(request: Request, step: int) -> Request:
    """Returns a padded request with other examples in the padding: those that its batch begins with."""
    batches = request.batches
    real = _real_examples(request)
    padding = batches.weights.shape[1] - real
    arrays = {name: array.copy() for name, array in batches.arrays.items()}
    for name in arrays.keys() - {WEIGHT}:
        arrays[name][step, real:] = batches.arrays[name][step, :padding]
    return replace(request, batches=replace(batches, arrays=arrays))


def _real_examples(request: Request) -> int:
    """Returns how many examples of the padded batch are real: at least one."""
    size: int = request.batches.weights.shape[1]
    return max(size - max(1, size // _PADDED_PARTS), 1)


def checks(mesh: Mapping[str, Array]) -> list[Check]:
    """Returns a check of everything that a step keeps; none where no step was taken again."""
    again = {key.removeprefix(PREFIX): value for key, value in mesh.items() if key.startswith(PREFIX)}
    if not again:
        return []
    end = points.part(mesh, points.numbers(mesh)[0], points.END)
    return [
        identical("padding", PREFIX + path, owner_of(path), _ORDER, end[path], value) for path, value in again.items()
    ]


def without_checks(mesh: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the arrays that are compared with another side: all but those of the step that was taken again."""
    return {key: value for key, value in mesh.items() if not key.startswith(PREFIX)}
