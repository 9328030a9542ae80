"""Trains all weights as one vector: one all-reduce, one update.

A step of a small dense model is bound by the number of its operations and all-reduces. DTensor would sum each gradient
by itself, and merge the sums by writes of single elements, which cost as much as the rest of the step: by CPU time a
step of the MNIST MLP on 8 devices takes a third longer so. An update of each variable by itself adds a fifth.

Shapes: D devices of the batch axis, N length of the vector, R rows of a matrix product, of which each device has R/D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# In elements, 64 bytes: TensorFlow returns an aligned piece of a vector without a copy.
_ALIGNMENT = 16
# 64 MiB of float32: above this size arithmetic takes longer than the operations that packing saves.
MOST_ELEMENTS = 1 << 24


def pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the vector (N,) of values, with zeros between them."""
    return tf.concat([_padded(tf.reshape(value, [-1])) for value in values], 0)


def unpack(vector: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the values in a vector (N,), of the shapes of other tensors or variables."""
    values = []
    start = 0
    for other in like:
        size = math.prod(other.shape)
        values.append(tf.reshape(tf.slice(vector, [start], [size]), other.shape))
        start += -(-size // _ALIGNMENT) * _ALIGNMENT
    return values


def summed(gradients: Sequence[tf.Tensor], groups: int) -> tf.Tensor | None:
    """Returns the vector (N,) of gradients of replicated variables, summed by one all-reduce.

    A gradient such as X^T Y already contains the sum over all devices' rows. It is computed again from its operands as
    D partial products, one per device, so that the sum can wait until all gradients are in one vector; the original
    operation has no consumer then, and TensorFlow drops it. None: one is not such a sum, as that of a convolution's
    kernel, or D is 1.
    """
    if groups == 1:
        return None
    shares = []
    for gradient in gradients:
        share = _shares(gradient, groups)
        if share is None:
            return None
        shares.append(share)
    return tf.reduce_sum(tf.concat(list(map(_padded, shares)), 1), 0)


def _padded(share: tf.Tensor) -> tf.Tensor:
    missing = -int(share.shape[-1]) % _ALIGNMENT
    if not missing:
        return share
    return tf.pad(share, [[0, 0]] * (share.shape.rank - 1) + [[0, missing]])


def _shares(gradient: tf.Tensor, groups: int) -> tf.Tensor | None:
    """Returns the shares (D, size) of a gradient, each summed over one device's rows; None: it is no such sum."""
    operation: Any = gradient.op
    kind = operation.type
    if kind in ("Reshape", "Identity"):
        return _shares(operation.inputs[0], groups)
    if kind == "MatMul" and operation.get_attr("transpose_a") and not operation.get_attr("transpose_b"):
        # The gradient of a kernel: its inputs, transposed, times the gradients of its outputs.
        left = _grouped(operation.inputs[0], groups)
        right = _grouped(operation.inputs[1], groups)
        if left is None or right is None:
            return None
        share = tf.matmul(left, right, transpose_a=True)
    elif kind == "BiasAddGrad" and operation.get_attr("data_format") == b"NHWC":
        grouped = _grouped(operation.inputs[0], groups)
        if grouped is None:
            return None
        share = tf.reduce_sum(grouped, list(range(1, len(grouped.shape) - 1)))
    elif kind == "Sum" and 0 in _reduced_dims(operation):
        grouped = _grouped(operation.inputs[0], groups)
        if grouped is None:
            return None
        share = tf.reduce_sum(grouped, [dim + 1 for dim in _reduced_dims(operation)])
    else:
        return None
    return tf.reshape(share, [groups, -1])


def _grouped(rows: tf.Tensor, groups: int) -> tf.Tensor | None:
    """Returns rows (R, ...) as (D, R/D, ...); None if the devices don't divide them."""
    if not rows.shape.is_fully_defined() or rows.shape[0] % groups:
        return None
    return tf.reshape(rows, [groups, rows.shape[0] // groups, *rows.shape[1:]])


def _reduced_dims(operation: tf.Operation) -> list[int]:
    """Returns the dims that a Sum reduces, none if the graph does not tell."""
    dims = tf.get_static_value(operation.inputs[1])
    rank = operation.inputs[0].shape.rank
    if dims is None or rank is None:
        return []
    return [int(dim) % rank for dim in dims.reshape(-1)]
