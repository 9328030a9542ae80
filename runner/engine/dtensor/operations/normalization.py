"""Fused batch normalization by plain reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf


def fused_batch_norm_v3(
    x: tf.Tensor,
    scale: tf.Tensor,
    offset: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
    epsilon: float = 0.0001,
    exponential_avg_factor: float = 1.0,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    """Stands for the raw operation FusedBatchNormV3, by plain reductions: over the global batch, whatever the mesh.

    The running variance follows n / (n - 1) times the batch's own, as the fused kernel's does.
    """
    rank = len(x.shape)
    channels = rank - 1 if data_format[-1] == "C" else 1
    axes = [dim for dim in range(rank) if dim != channels]

    def along(value: tf.Tensor) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        return value if channels == rank - 1 else tf.reshape(value, [-1 if d == channels else 1 for d in range(rank)])

    with tf.name_scope(name or "FusedBatchNormV3"):
        inputs = tf.cast(x, tf.float32)
        if is_training:
            used, spread = tf.nn.moments(inputs, axes)
            running = [tf.stop_gradient(used), tf.stop_gradient(spread) * _bessel(inputs, axes)]
            if exponential_avg_factor != 1.0:
                before = [tf.convert_to_tensor(mean), tf.convert_to_tensor(variance)]
                running = [
                    old - (old - new) * exponential_avg_factor for old, new in zip(before, running, strict=True)
                ]
        else:
            used = tf.convert_to_tensor(mean)
            spread = tf.convert_to_tensor(variance)
            running = [used, spread]
        y = tf.nn.batch_normalization(inputs, along(used), along(spread), along(offset), along(scale), epsilon)
        return tf.cast(y, x.dtype), *running, *running, running[1]


def _bessel(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor | float:
    """Returns n / (n - 1) of the n numbers that a mean is of."""
    sizes = [x.shape[axis] for axis in axes]
    if None not in sizes:
        count = math.prod(int(size) for size in sizes)
        return count / max(count - 1, 1)
    number = tf.cast(tf.reduce_prod([tf.shape(x)[axis] for axis in axes]), tf.float32)
    return number / tf.maximum(number - 1.0, 1.0)
