"""Replaces operations that DTensor has no rule for while a step is traced.

Layers stay as they are; the functions of TensorFlow and tf_keras that they call are replaced. DTensor has no rule for
fused batch normalization, nor for the gradients of average pooling and silu; and what it draws under a sharded layout
depends on the mesh. Layers that need more than these are rejected, see `.layers`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from runner.data.base import Array
from runner.engine.dtensor.private import KERNELS, PUBLIC, STATELESS
from runner.model import scope


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Replaces the operations that DTensor has no rule for, within the context."""
    before = [(module, name, getattr(module, name)) for module, name, _ in REPLACED]
    try:
        for module, name, function in REPLACED:
            setattr(module, name, function)
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def _replicated(stock: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns the replacement of a function that draws numbers from a seed: its result is replicated."""

    def draw(*args: object, **kwargs: object) -> tf.Tensor:
        return scope.replicate(stock(*args, **kwargs))

    return draw


uniform = _replicated(STATELESS.stateless_random_uniform)


def _silu(features: tf.Tensor, beta: tf.Tensor | float = 1.0) -> tf.Tensor:
    """Replaces `tf.nn.silu`, whose custom gradient fails in DTensor's compiler."""
    x = tf.convert_to_tensor(features)
    return x * tf.sigmoid(tf.cast(beta, x.dtype) * x)


def _avg_pool(
    input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: str | bytes,
    data_format: str = "NHWC",
    name: str | None = None,
) -> tf.Tensor:
    """Replaces the raw operation AvgPool of images (B, H, W, C) by a sum over the places in a window."""
    if data_format != "NHWC":
        raise ValueError("average pooling of images with channels first has no form for DTensor")
    height_width = list(map(int, input.shape[1:3]))
    size = list(map(int, ksize[1:3]))
    steps = list(map(int, strides[1:3]))
    pads = _pads(height_width, size, steps, padding)
    with tf.name_scope(name or "AvgPool"):
        x = tf.pad(input, [(0, 0), *pads, (0, 0)])
        parts = []
        for place in itertools.product(*map(range, size)):
            slices = []
            for start, length, window, step in zip(place, x.shape[1:3], size, steps, strict=True):
                last = (int(length) - window) // step
                slices.append(slice(start, start + last * step + 1, step))
            parts.append(x[:, slices[0], slices[1], :])
        counts = map(_entries_inside, height_width, size, steps, pads)
        count = functools.reduce(np.multiply.outer, counts)[None, ..., None]
        total = tf.add_n(parts)
        return total / tf.constant(count, total.dtype)


def _pads(
    lengths: Sequence[int], size: Sequence[int], steps: Sequence[int], padding: str | bytes
) -> list[tuple[int, int]]:
    """Returns the padding before and after height and width, for `VALID` or `SAME`."""
    if padding in ("VALID", b"VALID"):
        return [(0, 0)] * len(lengths)
    pads = []
    for length, window, step in zip(lengths, size, steps, strict=True):
        covered = (-(-length // step) - 1) * step + window
        total = max(covered - length, 0)
        # An odd total pads more at the end, as in TensorFlow.
        pads.append((total // 2, total - total // 2))
    return pads


def _entries_inside(length: int, window: int, step: int, pad: tuple[int, int]) -> Array:
    """Returns for each window along a dim how many of its entries are not padding."""
    starts = np.arange(0, length + sum(pad) - window + 1, step) - pad[0]
    return np.minimum(starts + window, length) - np.maximum(starts, 0)


def _fused_batch_norm_v3(
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


# (module or class, name of its function, replacement)
_Replacement = tuple[ModuleType | type, str, Callable[..., Any]]


def _public_replacements() -> Iterator[_Replacement]:
    """Yields the replacements in TensorFlow's public modules, which a user's layers may call."""
    for module in PUBLIC:
        yield module.nn, "silu", _silu
        yield module.nn, "swish", _silu
        yield module.random, "stateless_uniform", uniform
        yield module.random, "stateless_normal", _replicated(STATELESS.stateless_random_normal)
        yield module.random, "stateless_truncated_normal", _replicated(STATELESS.stateless_truncated_normal)


REPLACED: tuple[_Replacement, ...] = (
    (KERNELS, "avg_pool", _avg_pool),
    (KERNELS, "fused_batch_norm_v3", _fused_batch_norm_v3),
    (STATELESS, "stateless_random_uniform", uniform),
    *_public_replacements(),
)
