"""What random layers of tf_keras draw while a step is traced: a function of seed, layer, draw and step.

The layers stay tf_keras's own. Each keeps a generator of its own, and this alone is told otherwise: its draws come
from the entered scope, so that they are the same on every mesh, on one device, and when a run is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from runner.engine.dtensor import private
from runner.engine.dtensor.operations import drawn
from runner.model import scope

_IN_EVALUATION = -1  # the step of what a layer draws there too, as one that is called with training=True


@contextmanager
def handed_in(model: tf.Module) -> Iterator[None]:
    """Makes the random layers of a model draw what the entered scope says, while a call is traced.

    Args:
      model: of stock layers; left as it was.
    """
    private.let_walk(model)
    layers = [layer for layer in model.submodules if isinstance(layer, private.RandomLayer)]
    names = {private.generator(layer): layer.name for layer in layers}
    classes = {generator: type(generator) for generator in names}
    for generator, name in names.items():
        generator.layer_name = name
        generator.__class__ = _ScopedGenerator
    try:
        yield
    finally:
        for generator, own in classes.items():
            generator.__class__ = own
            del generator.layer_name


def _normal(stock: Callable[..., tf.Tensor], draw: drawn.Draw) -> Callable[..., tf.Tensor]:
    """Returns the method that stands for one of a generator's that draw normal numbers."""

    def draws(
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

    return draws


class _ScopedGenerator(private.RandomGenerator):  # type: ignore[misc]
    """A layer's generator whose draws are those of the entered scope; its own where none is entered."""

    layer_name: str

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the inputs with a share of `rate` set to zero and the rest scaled up."""
        held = scope.current()
        if held is None:
            return super().dropout(inputs, rate, noise_shape)
        if held.placer is None:  # TensorFlow's own arithmetic, with the numbers handed in
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
        """Returns a seed (2,), of what a layer draws by itself."""
        return super().make_seed_for_stateless_op() if scope.current() is None else self._seed_pair()

    def next_of(
        self, draw: drawn.Draw, shape: tf.Tensor | Sequence[int], *bounds: object, dtype: tf.DType
    ) -> tf.Tensor:
        """Returns the numbers of the layer's next draw, whole on each device."""
        return draw(_known(shape), self._seed_pair(), *bounds, dtype=dtype, alg="philox")

    def _seed_pair(self) -> tf.Tensor:
        held = scope.current()
        assert held is not None
        step = tf.constant(_IN_EVALUATION) if held.step is None else held.step
        return tf.stack([tf.constant(scope.next_mask_key(self.layer_name)), step])


def _known(shape: tf.Tensor | Sequence[int]) -> tf.Tensor | Sequence[int]:
    """Returns a shape as numbers where the graph tells them, as a draw on a mesh needs it."""
    found = tf.get_static_value(shape) if tf.is_tensor(shape) else None
    return shape if found is None else [int(size) for size in found]


def _static(noise_shape: tf.Tensor | Sequence[int] | None, inputs: tf.Tensor) -> list[int]:
    """Returns a noise shape in numbers: each dim is 1, or the inputs'."""
    if noise_shape is None:
        return list(inputs.shape)
    known = tf.get_static_value(noise_shape, partial=True)
    found = [tf.get_static_value(size) for size in known]
    return [int(whole if size is None else size) for size, whole in zip(found, inputs.shape, strict=True)]
