"""Packs tensors into the vector of the trainable variables.

Their gradients are summed over the devices as one.

The gradients are packed before the sum over the devices. Otherwise DTensor would sum each by itself, and merge the
sums by writes of single elements, which cost as much as the rest of the step.

Shapes: D devices of the batch axis, N length of the vector, R rows of a matrix product, of which each device has R/D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from runner.engine.dtensor.packing import ALIGNMENT, Packing


class NotPacked(Exception):  # noqa: N818 (not an error of the user's: the step is traced again, unpacked)
    """A gradient is not a sum over the examples that this module knows."""


def pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the vector (N,) of values in the order of `Packing.paths`.

    There are zeros between them.
    """
    return tf.concat([_padded(tf.reshape(value, [-1])) for value in values], 0)


def unpack(packing: Packing, vector: tf.Tensor) -> list[tf.Tensor]:
    """Returns the values in a vector (N,)."""
    pieces = [tf.slice(vector, [start], [size]) for start, size in zip(packing.starts, packing.sizes, strict=True)]
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, packing.shapes, strict=True)]


def summed(packing: Packing, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the vector (N,) of gradients, summed by one all-reduce.

    A gradient such as X^T Y already contains the sum over all devices' rows. It is computed again from its operands as
    D partial products, one per device, so that the sum can wait until all gradients are in one vector; the original
    operation has no consumer then, and TensorFlow drops it.

    Raises:
      NotPacked: one is not a sum over the rows of a matrix.
    """
    if packing.groups == 1:
        return pack(gradients)
    shares = [_shares(gradient, packing.groups) for gradient in gradients]
    return tf.reduce_sum(tf.concat(list(map(_padded, shares)), 1), 0)


def _padded(share: tf.Tensor) -> tf.Tensor:
    """Pads a tensor's last dim with zeros to a multiple of the alignment."""
    missing = -int(share.shape[-1]) % ALIGNMENT
    if not missing:
        return share
    return tf.pad(share, [[0, 0]] * (len(share.shape) - 1) + [[0, missing]])


def _shares(gradient: tf.Tensor, groups: int) -> tf.Tensor:
    """Returns the shares (D, size) of a gradient, each summed over one device's rows."""
    operation: Any = getattr(gradient, "op", None)
    kind = ""
    if operation is not None:
        kind = operation.type
    if kind in ("Reshape", "Identity"):
        return _shares(operation.inputs[0], groups)
    if kind == "MatMul" and operation.get_attr("transpose_a") and not operation.get_attr("transpose_b"):
        # The gradient of a kernel: its inputs, transposed, times the gradients of its outputs.
        left = _grouped(operation.inputs[0], groups)
        right = _grouped(operation.inputs[1], groups)
        share = tf.matmul(left, right, transpose_a=True)
    elif kind == "BiasAddGrad" and operation.get_attr("data_format") == b"NHWC":
        grouped = _grouped(operation.inputs[0], groups)
        share = tf.reduce_sum(grouped, list(range(1, len(grouped.shape) - 1)))
    elif kind == "Sum" and 0 in _reduced_dims(operation):
        share = tf.reduce_sum(_grouped(operation.inputs[0], groups), [dim + 1 for dim in _reduced_dims(operation)])
    else:
        raise NotPacked(f"operation {kind or type(gradient).__name__}")
    return tf.reshape(share, [groups, -1])


def _grouped(rows: tf.Tensor, groups: int) -> tf.Tensor:
    """Returns rows (R, ...) as (D, R/D, ...)."""
    if not rows.shape.is_fully_defined() or rows.shape[0] % groups:
        raise NotPacked(f"shape {rows.shape}")
    return tf.reshape(rows, [groups, rows.shape[0] // groups, *rows.shape[1:]])


def _reduced_dims(operation: tf.Operation) -> list[int]:
    """Returns the dims that a Sum reduces, none if the graph does not tell."""
    dims = tf.get_static_value(operation.inputs[1])
    rank = operation.inputs[0].shape.rank
    if dims is None or rank is None:
        return []
    return [int(dim) % rank for dim in dims.reshape(-1)]
