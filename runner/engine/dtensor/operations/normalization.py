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
    """Replaces the raw operation FusedBatchNormV3 by plain reductions.

    They run over the global batch, whatever the mesh.

    The running variance is updated with n / (n - 1) times the batch's, as in the fused kernel.
    """
    rank = len(x.shape)
    channels = 1
    if data_format[-1] == "C":
        channels = rank - 1
    dims = list(range(rank))
    dims.remove(channels)

    def along_channels(value: tf.Tensor) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        if channels == rank - 1:
            return value
        shape = [1] * rank
        shape[channels] = -1
        return tf.reshape(value, shape)

    with tf.name_scope(name or "FusedBatchNormV3"):
        inputs = tf.cast(x, tf.float32)
        if is_training:
            used_mean, used_variance = tf.nn.moments(inputs, dims)
            running_mean = tf.stop_gradient(used_mean)
            running_variance = tf.stop_gradient(used_variance) * _bessel(inputs, dims)
            # 1 means that the caller averages by itself, from the batch's own moments.
            if exponential_avg_factor != 1.0:
                old_mean = tf.convert_to_tensor(mean)
                old_variance = tf.convert_to_tensor(variance)
                running_mean = old_mean - (old_mean - running_mean) * exponential_avg_factor
                running_variance = old_variance - (old_variance - running_variance) * exponential_avg_factor
        else:
            used_mean = tf.convert_to_tensor(mean)
            used_variance = tf.convert_to_tensor(variance)
            running_mean = used_mean
            running_variance = used_variance
        y = tf.nn.batch_normalization(
            inputs,
            along_channels(used_mean),
            along_channels(used_variance),
            along_channels(offset),
            along_channels(scale),
            epsilon,
        )
        y = tf.cast(y, x.dtype)
        # The fused kernel has three more outputs, which only its own gradient reads.
        return y, running_mean, running_variance, running_mean, running_variance, running_variance


def _bessel(x: tf.Tensor, dims: Sequence[int]) -> tf.Tensor | float:
    """Returns n / (n - 1), Bessel's correction for a variance along some dims."""
    sizes = [x.shape[dim] for dim in dims]
    if None not in sizes:
        count = math.prod(map(int, sizes))
        return count / max(count - 1, 1)
    count_tensor = tf.cast(tf.reduce_prod([tf.shape(x)[dim] for dim in dims]), tf.float32)
    return count_tensor / tf.maximum(count_tensor - 1.0, 1.0)
