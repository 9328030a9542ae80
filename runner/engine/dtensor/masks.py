"""Random numbers of tf_keras's layers while a step is traced.

A function of seed, layer, draw and step.

The layers stay tf_keras's own. Only the generator that each layer has is replaced: its draws come from the entered
scope, so that they are the same on every mesh, on one device, and after a run is resumed. tf_keras's own draws depend
on the sharding, even on a mesh of one device, and their state is in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from runner.engine.dtensor import private
from runner.engine.dtensor.operations import drawn
from runner.model import scope

# The step of what a layer draws in an evaluation, such as one that is called with training=True. No training step has
# this number.
_IN_EVALUATION = -1


@contextmanager
def masks_from_scope(model: tf.Module) -> Iterator[None]:
    """Makes a model's random layers draw from the entered scope.

    A call is traced meanwhile.

    Args:
      model: of stock layers; left as it was.
    """
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


def _normal(stock: Callable[..., tf.Tensor], draw: drawn.Draw) -> Callable[..., tf.Tensor]:
    """Returns a replacement of a generator's method that draws normal numbers.

    Args:
      stock: tf_keras's method, used if no scope is entered.
      draw: the function of the scope's numbers.
    """

    def method(
        self: _ScopedGenerator,
        shape: tf.Tensor,
        mean: float = 0.0,
        stddev: float = 1.0,
        dtype: tf.DType | None = None,
        nonce: int | None = None,
    ) -> tf.Tensor:
        if scope.current() is None:
            return stock(self, shape, mean, stddev, dtype, nonce)
        return self.next_of(draw, shape, dtype=tf.as_dtype(dtype or "float32")) * stddev + mean

    return method


class _ScopedGenerator(private.RandomGenerator):  # type: ignore[misc]
    """A layer's generator that draws from the entered scope.

    If none is entered, it draws from its own state.
    """

    layer_name: str

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the inputs with a share of `rate` set to zero and the rest scaled up."""
        current = scope.current()
        if current is None:
            return super().dropout(inputs, rate, noise_shape)
        if current.placer is None:
            # On one device: TensorFlow's own arithmetic with the scope's numbers.
            return tf.nn.experimental.general_dropout(
                inputs,
                rate,
                uniform_sampler=lambda shape, **_: self.next_of(drawn.uniform, shape, dtype=tf.float32),
                noise_shape=noise_shape,
            )
        uniform = self.next_of(drawn.uniform, _static(noise_shape, inputs), dtype=tf.float32)
        keep = tf.cast(uniform >= rate, inputs.dtype)
        return inputs * keep / (1.0 - rate)

    def random_uniform(
        self,
        shape: tf.Tensor,
        minval: float = 0.0,
        maxval: float | None = None,
        dtype: tf.DType | None = None,
        nonce: int | None = None,
    ) -> tf.Tensor:
        """Returns uniform numbers."""
        if scope.current() is None:
            return super().random_uniform(shape, minval, maxval, dtype, nonce)
        return self.next_of(drawn.uniform, shape, minval, maxval, dtype=tf.as_dtype(dtype or "float32"))

    random_normal = _normal(private.RandomGenerator.random_normal, drawn.normal)
    truncated_normal = _normal(private.RandomGenerator.truncated_normal, drawn.truncated_normal)

    def make_seed_for_stateless_op(self) -> tf.Tensor:
        """Returns a seed (2,), for a layer that draws by itself."""
        if scope.current() is None:
            return super().make_seed_for_stateless_op()
        return self._seed_pair()

    def next_of(
        self, draw: drawn.Draw, shape: tf.Tensor | Sequence[int], *bounds: object, dtype: tf.DType
    ) -> tf.Tensor:
        """Returns the numbers of the layer's next draw, replicated.

        Args:
          draw: TensorFlow's stateless function.
          shape: the shape of the result.
          *bounds: passed to `draw`.
          dtype: the dtype of the result.
        """
        # TensorFlow's default algorithm depends on the device; philox gives the same numbers on all.
        return draw(_known(shape), self._seed_pair(), *bounds, dtype=dtype, alg="philox")

    def _seed_pair(self) -> tf.Tensor:
        current = scope.current()
        assert current is not None
        step = tf.constant(_IN_EVALUATION) if current.step is None else current.step
        return tf.stack([tf.constant(scope.next_mask_key(self.layer_name)), step])


def _known(shape: tf.Tensor | Sequence[int]) -> tf.Tensor | Sequence[int]:
    """Returns a shape as integers if the graph tells them.

    A draw on a mesh needs them.
    """
    if not tf.is_tensor(shape):
        return shape
    sizes = tf.get_static_value(shape)
    if sizes is None:
        return shape
    return list(map(int, sizes))


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
