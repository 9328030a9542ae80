"""Padding may touch nothing that is kept: one step of the mesh with padding, and the same with other padding.

Arrays by key: `padded/<path>`, the state after a step from a generic point whose batch ends in padding;
`padding/<path>`, the same where the padding holds other examples. The two are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches
from runner.optim.paths import owner_of
from runner.verify.compare import Check, equal
from runner.verify.request import Request

_ONE, _OTHER = "padded", "padding"
_SHARE = 4  # the last of so many parts of a batch is padding


def padded(request: Request, step: int) -> dict[str, Request]:
    """Returns the request with padding at the end of a step's batch, and with other padding there."""
    batches = request.batches
    rows = max(1, batches.weights.shape[1] // _SHARE)
    weights, arrays = batches.weights.copy(), {name: array.copy() for name, array in batches.arrays.items()}
    weights[step, -rows:] = 0
    arrays[WEIGHT][step, -rows:] = 0
    other = {name: array.copy() for name, array in arrays.items()}
    for name in other.keys() - {WEIGHT}:
        other[name][step, -rows:] = arrays[name][step, :rows]
    return {
        _ONE: replace(request, batches=HostBatches(arrays, weights, batches.steps)),
        _OTHER: replace(request, batches=HostBatches(other, weights, batches.steps)),
    }


def checks(mesh: Mapping[str, Array]) -> list[Check]:
    """Returns a check of everything that a step keeps; nothing where no padded step was taken."""
    found = []
    for key, value in mesh.items():
        kind, _, path = key.partition("/")
        if kind == _OTHER:
            one = mesh[f"{_ONE}/{path}"]
            found.append(equal(_OTHER, key, owner_of(path), 1.8, one, np.asarray(value)))
    return found


def compared(mesh: Mapping[str, Array]) -> dict[str, Array]:
    """Returns what is compared with another side: all but the padded steps."""
    return {key: value for key, value in mesh.items() if key.partition("/")[0] not in (_ONE, _OTHER)}
