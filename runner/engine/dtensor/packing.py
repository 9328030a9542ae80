"""Trained variables of a data-parallel model as one vector, so that a step sums and updates them all at once.

A dense model's step is bound by the number of its operations and of its all-reduces, and not by arithmetic. Here the
weights and every slot lie each in one vector while a call lasts: an update is a dozen operations whatever the number
of variables. The gradients become one vector before they are summed over the devices: DTensor would sum each by
itself, and merge the sums by writes of single elements, which cost as much as the rest of the step.

Shapes: D devices of the batch axis, N length of the vector, R rows of a matrix product, of which each device has R/D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCOPE = "packed_gradients"  # name scope of the one sum over the devices
_ALIGNMENT = 16  # in elements, 64 bytes: TensorFlow gives an aligned piece of a vector without a copy
_MOST_ELEMENTS = 1 << 24  # a call holds the old state and the new one; above this the operations' number is no matter


class NotPacked(Exception):  # noqa: N818 (no error of the user's: the step is traced again, unpacked)
    """A gradient is not a sum over the examples that this module knows."""


@dataclass(frozen=True)
class Packing:
    """Where each trained variable lies in the vector.

    Attributes:
      paths: canonical paths, in the order of the vector.
      shapes: of each.
      groups: D, parts that a gradient is summed in before the devices' sum.
    """

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: int

    @property
    def sizes(self) -> list[int]:
        """Returns how many elements each variable has."""
        return [math.prod(shape) for shape in self.shapes]

    def pack(self, values: Sequence[Any]) -> Any:
        """Returns the vector (N,) of values in the order of `paths`, with zeros between them."""
        import tensorflow as tf

        return tf.concat([_padded(tf.reshape(value, [-1])) for value in values], 0)

    def unpack(self, vector: Any) -> list[Any]:
        """Returns the values that a vector (N,) holds."""
        import tensorflow as tf

        starts = _starts(self.sizes)
        pieces = [tf.slice(vector, [start], [size]) for start, size in zip(starts, self.sizes, strict=True)]
        return [tf.reshape(piece, shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def summed(self, gradients: Sequence[Any]) -> Any:
        """Returns the vector (N,) of gradients, computed anew from what each is the sum of where devices share it.

        Raises:
          NotPacked: one is something else than a sum over the rows of a matrix.
        """
        import tensorflow as tf

        if self.groups == 1:
            return self.pack(gradients)
        parts = [_parts(gradient, self.groups) for gradient in gradients]
        with tf.name_scope(SCOPE):
            return tf.reduce_sum(tf.concat([_padded(part) for part in parts], 1), 0)


def packing(
    shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str], specs: Mapping[str, Any], groups: int
) -> Packing | None:
    """Returns how the variables of a model are packed, None where they are not.

    Args:
      shapes: of the trained variables, by canonical path.
      dtypes: names of theirs.
      specs: a mesh axis or None for each of their dims.
      groups: size of the mesh axis that splits the examples.
    """
    packs = (
        all(dtype == "float32" for dtype in dtypes.values())
        and not any(axis for spec in specs.values() for axis in spec)
        and all(len(shape) <= 2 for shape in shapes.values())  # a larger kernel is no matrix product's
        and 0 < sum(math.prod(shape) for shape in shapes.values()) <= _MOST_ELEMENTS
    )
    return Packing(tuple(shapes), tuple(tuple(shape) for shape in shapes.values()), groups) if packs else None


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes[:-1]:
        starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return starts


def _padded(part: Any) -> Any:
    """Returns a tensor with zeros at the end of its last dim, up to a multiple of the alignment."""
    import tensorflow as tf

    missing = -int(part.shape[-1]) % _ALIGNMENT
    return tf.pad(part, [[0, 0]] * (len(part.shape) - 1) + [[0, missing]]) if missing else part


def _parts(gradient: Any, groups: int) -> Any:
    """Returns the parts (D, size) that a gradient is the sum of, each over its share of the rows."""
    import tensorflow as tf

    operation: Any = getattr(gradient, "op", None)
    kind = operation.type if operation is not None else ""
    if kind in ("Reshape", "Identity"):
        return _parts(operation.inputs[0], groups)
    if kind == "MatMul" and operation.get_attr("transpose_a") and not operation.get_attr("transpose_b"):
        left, right = (_grouped(operand, groups) for operand in operation.inputs)
        part = tf.matmul(left, right, transpose_a=True)
    elif kind == "BiasAddGrad" and operation.get_attr("data_format") == b"NHWC":
        grouped = _grouped(operation.inputs[0], groups)
        part = tf.reduce_sum(grouped, list(range(1, len(grouped.shape) - 1)))
    elif kind == "Sum" and 0 in (axes := _axes(operation)):
        part = tf.reduce_sum(_grouped(operation.inputs[0], groups), [axis + 1 for axis in axes])
    else:
        raise NotPacked(f"operation {kind or type(gradient).__name__}")
    return tf.reshape(part, [groups, -1])


def _grouped(rows: Any, groups: int) -> Any:
    """Returns rows (R, ...) as (D, R/D, ...)."""
    import tensorflow as tf

    if not rows.shape.is_fully_defined() or rows.shape[0] % groups:
        raise NotPacked(f"shape {rows.shape}")
    return tf.reshape(rows, [groups, rows.shape[0] // groups, *rows.shape[1:]])


def _axes(operation: Any) -> list[int]:
    """Returns the dims that a Sum adds up, none where the graph does not tell."""
    import tensorflow as tf

    found = tf.get_static_value(operation.inputs[1])
    rank = operation.inputs[0].shape.rank
    return [] if found is None or rank is None else [int(axis) % rank for axis in found.reshape(-1)]
