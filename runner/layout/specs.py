"""Shapes of variables, and specs: the mesh axis that shards each dim of a variable."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runner.layout.axes import names_of

# One entry per dim: the axis that shards it, or None.
Spec = tuple[str | None, ...]
Shape = tuple[int, ...]


def replicated(shape: Shape) -> Spec:
    """Returns the spec of a replicated variable."""
    return (None,) * len(shape)


def axis_size(axes: Mapping[str, int], axis: str | None) -> int:
    """Returns the size of the axis that shards a dim, or of several joined by `+`; 1 if none does."""
    return math.prod(axes[name] for name in names_of(axis))


def shard_spec(shape: Shape, axis: str, size: int, min_elements: int = 0, first: int = 0) -> Spec:
    """Shards the largest dim that an axis divides, the last of equal ones; none before `first`.

    A variable of fewer than `min_elements` is replicated, and one of which the axis divides no dim.

    Example:
      >>> shard_spec((3, 3, 24, 32), "batch", 8)
      (None, None, None, 'batch')
    """
    divisible = [dim for dim in range(first, len(shape)) if shape[dim] % size == 0]
    if not divisible or math.prod(shape) < min_elements:
        return replicated(shape)
    sharded_dim = max(divisible, key=lambda dim: (shape[dim], dim))
    return spec_of_dim(len(shape), sharded_dim, axis)


def spec_of_dim(rank: int, sharded_dim: int, axis: str) -> Spec:
    """Returns the spec that shards a single dim."""
    spec: list[str | None] = [None] * rank
    spec[sharded_dim] = axis
    return tuple(spec)
