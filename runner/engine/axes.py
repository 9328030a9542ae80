"""Axes of a mesh: those of specs, and the groups of devices in which a collective over some axes runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from runner.layout import Spec
from runner.layout.axes import names_of


def group_size(axis: str, axes: Mapping[str, int]) -> int:
    """Returns how many devices a collective joins.

    Args:
      axis: mesh axis, or several joined by `+`.
      axes: mesh axis to size.
    """
    return math.prod(axes[name] for name in axis.split("+"))


def axes_of(specs: Iterable[Spec]) -> set[str]:
    """Returns the axes that shard a dim of any array."""
    return {name for spec in specs for axis in spec for name in names_of(axis)}


def without_axes(spec: Spec, axes: Collection[str]) -> Spec:
    """Returns a spec that shards no dim over some axes."""
    return tuple(None if axis in axes else axis for axis in spec)


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
