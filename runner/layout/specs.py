"""Shapes and specs: which dims of a variable lie over which axes."""

from __future__ import annotations

import math

Spec = tuple[str | None, ...]
Shape = tuple[int, ...]


def whole(shape: Shape) -> Spec:
    """Returns the spec of a variable that every device holds whole."""
    return (None,) * len(shape)


def shard_spec(shape: Shape, axis: str, size: int, min_elements: int = 0, first: int = 0) -> Spec:
    """Splits the largest dim that an axis divides, the last of equals.

    Args:
      shape: the whole variable's.
      axis: mesh axis.
      size: its size.
      min_elements: a variable of fewer elements stays whole.
      first: dims before it are not split.

    Returns:
      The spec; all None where the variable is too small or the axis divides no dim.

    Example:
      >>> shard_spec((3, 3, 24, 32), "batch", 8)
      (None, None, None, 'batch')
    """
    fitting = [index for index, dim in enumerate(shape) if dim % size == 0 and index >= first]
    if not fitting or math.prod(shape) < min_elements:
        return whole(shape)
    split = max(fitting, key=lambda index: (shape[index], index))
    return tuple(axis if index == split else None for index in range(len(shape)))
