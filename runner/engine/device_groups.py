"""The groups of devices in which a collective over some axes of a mesh runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np


def device_groups(axes: Mapping[str, int]) -> dict[tuple[str, ...], set[frozenset[int]]]:
    """Returns axes -> the groups of devices that differ in those axes only, for every choice of axes.

    Args:
      axes: mesh axis to size; devices are numbered row-major.
    """
    real_axes = [name for name, size in axes.items() if size > 1]
    ids = np.arange(math.prod(axes.values())).reshape([axes[name] for name in real_axes])
    groups = {}
    for count in range(len(real_axes) + 1):
        for dims in itertools.combinations(range(len(real_axes)), count):
            # With the chosen dims last, each row of the flattened ids is one group.
            other_dims = [dim for dim in range(len(real_axes)) if dim not in dims]
            group_size = math.prod(ids.shape[dim] for dim in dims)
            rows = ids.transpose([*other_dims, *dims]).reshape(-1, group_size)
            names = tuple(real_axes[dim] for dim in dims)
            groups[names] = {frozenset(row) for row in rows.tolist()}
    return groups
