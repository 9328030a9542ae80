"""Replaces operations that DTensor has no rule for while a step is traced.

Layers stay as they are; the functions of TensorFlow and tf_keras that they call are replaced. DTensor has no rule for
fused batch normalization, nor for the gradient of silu; and what it draws under a sharded layout
depends on the mesh. Layers that need more than these are rejected, see `.layers`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

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
    def draw(*args: object, **kwargs: object) -> tf.Tensor:
        return scope.replicate(stock(*args, **kwargs))

    return draw


uniform = _replicated(STATELESS.stateless_random_uniform)


def _silu(features: tf.Tensor, beta: tf.Tensor | float = 1.0) -> tf.Tensor:
    """Replaces `tf.nn.silu`, whose custom gradient fails in DTensor's compiler."""
    x = tf.convert_to_tensor(features)
    return x * tf.sigmoid(tf.cast(beta, x.dtype) * x)


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
    """Replaces the raw operation FusedBatchNormV3 by plain reductions over the global batch.

    The running variance is updated with n / (n - 1) times the batch's, as in the fused kernel.
    """
    if data_format[-1] != "C":
        raise ValueError("batch normalization with channels first has no form for DTensor")
    dims = list(range(len(x.shape) - 1))
    with tf.name_scope(name or "FusedBatchNormV3"):
        inputs = tf.cast(x, tf.float32)
        if is_training:
            used_mean, used_variance = tf.nn.moments(inputs, dims)
            count = math.prod(x.shape[:-1])
            bessel = count / max(count - 1, 1)
            running_mean = tf.stop_gradient(used_mean)
            running_variance = tf.stop_gradient(used_variance) * bessel
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
            used_mean,
            used_variance,
            tf.convert_to_tensor(offset),
            tf.convert_to_tensor(scale),
            epsilon,
        )
        y = tf.cast(y, x.dtype)
        # The fused kernel has three more outputs, which only its own gradient reads.
        return y, running_mean, running_variance, running_mean, running_variance, running_variance


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
    (KERNELS, "fused_batch_norm_v3", _fused_batch_norm_v3),
    (STATELESS, "stateless_random_uniform", uniform),
    *_public_replacements(),
)
