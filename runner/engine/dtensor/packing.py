"""Which trainable variables lie in one vector while a call lasts, and where in it. Imports no TensorFlow.

A dense model's step is bound by the number of its operations and of its all-reduces, and not by arithmetic. Here the
weights and every slot lie each in one vector while a call lasts: an update is a dozen operations whatever the number
of variables, and the gradients are summed over the devices as one (see `.packed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from runner.engine.base import VariableInfo

ALIGNMENT = 16  # in elements, 64 bytes: TensorFlow gives an aligned piece of a vector without a copy
_MOST_ELEMENTS = 1 << 24  # a call holds the old state and the new one; above this the operations' number is no matter


@dataclass(frozen=True)
class Packing:
    """Where each trainable variable lies in the vector.

    Attributes:
      paths: canonical paths, in the order of the vector.
      shapes: of each.
      groups: D, shares that a gradient is summed in before the devices' sum.
    """

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: int

    @property
    def sizes(self) -> list[int]:
        """Returns how many elements each variable has."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def starts(self) -> list[int]:
        """Returns where each variable begins."""
        starts = [0]
        for size in self.sizes[:-1]:
            starts.append(starts[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        return starts


def packing(variables: Mapping[str, VariableInfo], groups: int, *, elementwise: bool) -> Packing | None:
    """Returns how the variables of a model are packed, None where they are not.

    Args:
      variables: the trainable ones, by canonical path.
      groups: size of the mesh axis that splits the examples.
      elementwise: the optimizer's rule goes element by element; one that takes norms or products of a whole variable,
        as LAMB's or Muon's, would take those of all variables together.
    """
    packs = (
        elementwise
        and all(each.dtype == "float32" and not any(each.spec) for each in variables.values())
        and all(len(each.shape) <= 2 for each in variables.values())  # a larger kernel is no matrix product's
        and 0 < sum(math.prod(each.shape) for each in variables.values()) <= _MOST_ELEMENTS
    )
    return Packing(tuple(variables), tuple(each.shape for each in variables.values()), groups) if packs else None
