"""The groups of devices in which a collective over some axes of a mesh runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt


def device_groups(axes: Mapping[str, int]) -> dict[tuple[str, ...], set[frozenset[int]]]:
    """Returns, by axes, the groups of devices that differ in those axes only.

    There is an entry for every choice of axes.

    Args:
      axes: mesh axis to size; devices are numbered row-major.
    """
    names: list[str] = []
    sizes: list[int] = []
    for name, size in axes.items():
        if size > 1:
            names.append(name)
            sizes.append(size)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    groups = {}
    for count in range(len(names) + 1):
        for dims in itertools.combinations(range(len(names)), count):
            groups[tuple(names[dim] for dim in dims)] = set(map(frozenset, groups_along(ids, dims)))
    return groups


def groups_along(ids: npt.NDArray[np.integer], dims: Sequence[int]) -> list[list[int]]:
    """Returns the groups of devices that differ along some dims only.

    Args:
      ids: of the devices, one dim per axis of the mesh.
      dims: ascending.
    """
    # With the chosen dims last, each row of the flattened ids is one group.
    last_dims = range(ids.ndim - len(dims), ids.ndim)
    group_size = math.prod(ids.shape[dim] for dim in dims)
    groups: list[list[int]] = np.moveaxis(ids, dims, last_dims).reshape(-1, group_size).tolist()
    return groups
