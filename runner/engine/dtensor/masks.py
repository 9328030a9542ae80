"""Dropout masks of tf_keras's layers while a step is traced: functions of seed, layer, call and step.

The layers stay tf_keras's own. Only the generator that each layer has is replaced: its draws come from the entered
scope, so that they are the same on every mesh, on one device, and after a run is resumed. tf_keras's own draws depend
on the sharding, even on a mesh of one device, and their state is in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from runner.engine.dtensor import private
from runner.engine.dtensor.operations import uniform
from runner.model import scope

# The step of what a layer draws in an evaluation, such as one that is called with training=True. No training step has
# this number.
_IN_EVALUATION = -1


@contextmanager
def masks_from_scope(model: tf.Module) -> Iterator[None]:
    """Makes a model's dropout draw from the entered scope while a call is traced."""
    # By generator and not by layer: layers may share one, whose class must be changed once.
    layer_names = {}
    for layer in model.submodules:
        if isinstance(layer, private.RandomLayer):
            layer_names[private.generator(layer)] = layer.name
    classes = {generator: type(generator) for generator in layer_names}
    for generator, name in layer_names.items():
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
