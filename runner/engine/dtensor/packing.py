"""Which trainable variables lie in one vector while a call lasts, and where in it. Imports no TensorFlow.

A dense model's step is bound by the number of its operations and of its all-reduces, and not by arithmetic. Here the
weights and every slot lie each in one vector while a call lasts: an update is a dozen operations whatever the number
of variables, and the gradients are summed over the devices as one (see `.packed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def packing(
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, str],
    specs: Mapping[str, Sequence[str | None]],
    groups: int,
    *,
    elementwise: bool,
) -> Packing | None:
    """Returns how the variables of a model are packed, None where they are not.

    Args:
      shapes: of the trainable variables, by canonical path.
      dtypes: names of theirs.
      specs: a mesh axis or None for each of their dims.
      groups: size of the mesh axis that splits the examples.
      elementwise: the optimizer's rule goes element by element; one that takes norms or products of a whole variable,
        as LAMB's or Muon's, would take those of all variables together.
    """
    packs = (
        elementwise
        and all(dtype == "float32" for dtype in dtypes.values())
        and not any(axis for spec in specs.values() for axis in spec)
        and all(len(shape) <= 2 for shape in shapes.values())  # a larger kernel is no matrix product's
        and 0 < sum(math.prod(shape) for shape in shapes.values()) <= _MOST_ELEMENTS
    )
    return Packing(tuple(shapes), tuple(tuple(shape) for shape in shapes.values()), groups) if packs else None
