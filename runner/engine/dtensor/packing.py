"""Positions of the trainable variables in one vector, within a device call.

Imports no TensorFlow.

A step of a dense model is bound by the number of its operations and all-reduces, and not by arithmetic. So the weights
and each slot are one vector within a call: an update is a dozen operations whatever the number of variables, and the
gradients are summed over the devices as one (see `.packed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from runner.engine.base import VariableInfo

# In elements, 64 bytes: TensorFlow returns an aligned piece of a vector without a copy.
ALIGNMENT = 16
# 64 MiB of float32. A call holds the old state and the new one, so packing doubles the memory of the state; and above
# this size arithmetic takes longer than the operations that packing saves.
_MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Packing:
    """Each trainable variable's position in the vector.

    Attributes:
      paths: canonical paths, in the order of the vector.
      shapes: of each.
      groups: D, number of shares that a gradient has before the sum over the devices.
    """

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: int

    @property
    def sizes(self) -> list[int]:
        """Returns the number of elements of each variable."""
        return list(map(math.prod, self.shapes))

    @property
    def starts(self) -> list[int]:
        """Returns the index of each variable's first element."""
        starts = [0]
        for size in self.sizes[:-1]:
            aligned_size = -(-size // ALIGNMENT) * ALIGNMENT
            starts.append(starts[-1] + aligned_size)
        return starts


def packing(variables: Mapping[str, VariableInfo], groups: int, *, elementwise: bool) -> Packing | None:
    """Returns the packing of a model's variables, None if they are not to be packed.

    Args:
      variables: the trainable ones, by canonical path.
      groups: size of the mesh axis that shards the examples.
      elementwise: the optimizer's rule is elementwise. One that computes norms or products of a whole variable, such
      as
        LAMB's or Muon's, would compute them over all variables together.
    """
    shapes = []
    for info in variables.values():
        is_replicated_float32 = info.dtype == "float32" and not any(info.spec)
        # The gradient of a larger kernel, such as a convolution's, is not a matrix product, which `.packed` needs.
        if not is_replicated_float32 or len(info.shape) > 2:
            return None
        shapes.append(info.shape)
    # A rule that is not elementwise computes norms or products of each variable by itself.
    elements = sum(map(math.prod, shapes))
    if not elementwise or not 0 < elements <= _MOST_ELEMENTS:
        return None
    return Packing(tuple(variables), tuple(shapes), groups)
