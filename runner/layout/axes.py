"""Mesh axes, and specs: the axis that shards each dim of an array. Imports no NumPy, which would delay an error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping

from runner.config.schema import LayoutConfig

# One entry per dim: the axis that shards it, or None.
Spec = tuple[str | None, ...]
Shape = tuple[int, ...]

BATCH = "batch"
# An axis of this name shards the examples too, before `batch`, and no weights. Weights that are sharded over `batch`
# then have a copy per index along it: HSDP.
REPLICA = "replica"
# Joins the names of axes that shard one dim together.
JOIN = "+"
# Name of the dim of tokens.
SEQUENCE = "sequence"


def batch_axis(config: LayoutConfig, axes: Mapping[str, int]) -> str | None:
    """Returns the axis that shards the examples, or several joined by `+`.

    It is the first entry of `layout.inputs`, the same in all inputs of a checked config; else the axis `batch`,
    together with an axis `replica`.
    """
    for spec in config.inputs.values():
        if spec:
            return spec[0]
    if BATCH not in axes:
        return None
    return f"{REPLICA}{JOIN}{BATCH}" if REPLICA in axes else BATCH


def names_of(axis: str | None) -> list[str]:
    """Returns the mesh axes that an entry of a spec names."""
    return axis.split(JOIN) if axis else []


def inner_batch_axis(config: LayoutConfig, axes: Mapping[str, int]) -> str | None:
    """Returns the axis that shards the examples; of two, the one that weights may be sharded over too."""
    names = names_of(batch_axis(config, axes))
    return names[-1] if names else None


def data_axes(config: LayoutConfig, axes: Mapping[str, int]) -> set[str]:
    """Returns the axes that shard any dim of a batch's arrays, over which gradients are summed."""
    others = (batch_axis(config, axes), config.sequence)
    return axes_of([others, *config.inputs.values()])


def replicated(shape: Shape) -> Spec:
    """Returns the spec of a replicated variable."""
    return (None,) * len(shape)


def axes_of(specs: Iterable[Iterable[str | None]]) -> set[str]:
    """Returns the axes that shard a dim of any array."""
    names = set[str]()
    for axis in itertools.chain.from_iterable(specs):
        names.update(names_of(axis))
    return names


def without_axes(spec: Spec, axes: Collection[str]) -> Spec:
    """Returns a spec that shards no dim over some axes."""
    return tuple(None if axis in axes else axis for axis in spec)


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
    spec: list[str | None] = [None] * len(shape)
    spec[sharded_dim] = axis
    return tuple(spec)
