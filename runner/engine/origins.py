"""Shared parts of the search for a collective's origin.

An origin is the variable or layer that a collective serves. Each engine reads a program in its own form, and its
compiler changes shapes in its own way. Common to both are the layer's name among the scopes of an operation, the
shapes that a variable may have on one device, and the claims: a layer's variables of one shape, such as the two
vectors of a normalization, are given out one after another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from runner.layout import Placement, Spec
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


def sums_gradients(axis: str, data_axes: Collection[str]) -> bool:
    """Returns whether a sum in the backward pass is one of gradients.

    It runs over an axis that shards the inputs.
    """
    return not set(data_axes).isdisjoint(axis.split("+"))


def device_shapes(placement: Placement, axis: str, axes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Returns the shapes that one device may hold of a variable.

    The first is that of the shard gathered over the collective's axes, the second that of the stored shard.

    Args:
      placement: the placement of the variable.
      axis: the axis of the collective, several axes joined by `+`.
      axes: mesh axis to size.
    """
    gathered = replace(placement, spec=without_axes(placement.spec, axis.split("+")))
    return [gathered.shard_shape(axes), placement.shard_shape(axes)]


class Claims:
    """The variables that collectives have been assigned to."""

    def __init__(self) -> None:
        # (*kind, path): a variable may serve one collective of each kind.
        self._claimed: set[tuple[str, ...]] = set()

    def first_free(self, paths: Iterable[str], *kind: str) -> str | None:
        """Claims and returns the first path that no earlier collective has claimed.

        Returns None if all are claimed by collectives of this kind.

        Args:
          paths: candidates, the best first.
          *kind: what tells collectives apart that may serve one variable, such as phase and axis.
        """
        for path in paths:
            if (*kind, path) not in self._claimed:
                self._claimed.add((*kind, path))
                return path
        return None
