"""Replaces operations that DTensor has no rule for, and random numbers, while a step is traced.

Layers stay as they are; the functions of TensorFlow and tf_keras that they call are replaced. DTensor has no rule for
fused batch normalization, nor for the gradient of silu; and what it draws under a sharded layout
depends on the mesh. Layers that need more than these are rejected, see `.layers`.

Dropout masks are functions of seed, layer, call and step. Only the generator that each layer has is replaced: its
draws come from the entered scope, so that they are the same on every mesh, on one device, and after a run is resumed.
tf_keras's own draws depend on the sharding, even on a mesh of one device, and their state is in no checkpoint.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from runner.engine.dtensor import private
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

# The step of what a layer draws in an evaluation, such as one that is called with training=True. No training step has
# this number.
_IN_EVALUATION = -1


@contextlib.contextmanager
def masks_from_scope(model: tf.Module) -> Iterator[None]:
    """Makes a model's dropout draw from the entered scope while a call is traced."""
    # By generator and not by layer: layers may share one, whose class must be changed once.
    layer_names = {}
    for layer in model.submodules:
        if isinstance(layer, private.RandomLayer):
            layer_names[private.generator(layer)] = layer.name
    classes = {}
    for generator, name in layer_names.items():
        classes[generator] = type(generator)
        generator.layer_name = name
        generator.__class__ = _ScopedGenerator
    try:
        yield
    finally:
        for generator, original_class in classes.items():
            generator.__class__ = original_class
            del generator.layer_name


class _ScopedGenerator(private.RandomGenerator):  # type: ignore[misc]
    """A layer's generator whose dropout draws from the entered scope, if there is one."""

    layer_name: str

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the inputs with a share of `rate` set to zero and the rest scaled up."""
        current = scope.current()
        if current is None:
            return super().dropout(inputs, rate, noise_shape)
        if current.placer is None:
            # On one device: TensorFlow's own arithmetic with the scope's numbers.
            return tf.nn.experimental.general_dropout(
                inputs, rate, uniform_sampler=lambda shape, **_: self._uniform(shape), noise_shape=noise_shape
            )
        keep = tf.cast(self._uniform(_static(noise_shape, inputs)) >= rate, inputs.dtype)
        return inputs * keep / (1.0 - rate)

    def _uniform(self, shape: tf.Tensor | Sequence[int]) -> tf.Tensor:
        current = scope.current()
        assert current is not None
        step = tf.constant(_IN_EVALUATION) if current.step is None else current.step
        seed = tf.stack([tf.constant(scope.next_mask_key(self.layer_name)), step])
        # TensorFlow's default algorithm depends on the device; philox gives the same numbers on all.
        return uniform(shape, seed, dtype=tf.float32, alg="philox")


def _static(noise_shape: tf.Tensor | Sequence[int] | None, inputs: tf.Tensor) -> list[int]:
    """Returns a noise shape as integers: each dim is 1, or the inputs'."""
    if noise_shape is None:
        return list(inputs.shape)
    sizes = []
    for noise_size, size in zip(tf.get_static_value(noise_shape, partial=True), inputs.shape, strict=True):
        known_size = tf.get_static_value(noise_size)
        if known_size is None:
            known_size = size
        sizes.append(int(known_size))
    return sizes
