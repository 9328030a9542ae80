"""Axes of a mesh: those of specs, and the number of devices in which a collective over some axes runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

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
