"""What random layers of tf_keras draw while a step is traced: a function of seed, layer, draw and step.

The layers stay tf_keras's own. Each keeps a generator of its own, and this alone is told otherwise: its draws come
from the entered scope, so that they are the same on every mesh, on one device, and when a run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from runner.engine.dtensor import private
from runner.model import scope

_uniform, _normal = tf.random.stateless_uniform, tf.random.stateless_normal
_truncated_normal = tf.random.stateless_truncated_normal
_IN_EVALUATION = -1  # the step of what a layer draws there too, as one that is called with training=True


@contextmanager
def handed_in(model: tf.Module) -> Iterator[None]:
    """Makes the random layers of a model draw what the entered scope says, while a call is traced.

    Args:
      model: of stock layers; left as it was.
    """
    private.let_walk(model)
    layers = [layer for layer in model.submodules if isinstance(layer, private.RandomLayer)]
    generators = {id(generator): (layer, generator) for layer in layers for generator in [private.generator(layer)]}
    classes = [type(generator) for _, generator in generators.values()]
    for layer, generator in generators.values():
        generator.layer_name, generator.__class__ = layer.name, _ScopedGenerator
    try:
        yield
    finally:
        for (_, generator), own in zip(generators.values(), classes, strict=True):
            generator.__class__ = own
            del generator.layer_name


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
                uniform_sampler=lambda shape, **_: self._uniform(shape),
                noise_shape=noise_shape,
            )
        keep = tf.cast(self._uniform(_static(noise_shape, inputs)) >= rate, inputs.dtype)
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
        dtype = tf.as_dtype(dtype or "float32")
        highest = 1.0 if maxval is None and dtype.is_floating else maxval
        return scope.replicate(_uniform(_known(shape), self._seed_pair(), minval, highest, dtype, alg="philox"))

    def random_normal(
        self,
        shape: tf.Tensor,
        mean: float = 0.0,
        stddev: float = 1.0,
        dtype: tf.DType | None = None,
        nonce: int | None = None,
    ) -> tf.Tensor:
        """Returns normal numbers."""
        if scope.current() is None:
            return super().random_normal(shape, mean, stddev, dtype, nonce)
        drawn = _normal(_known(shape), self._seed_pair(), dtype=tf.as_dtype(dtype or "float32"), alg="philox")
        return scope.replicate(drawn) * stddev + mean

    def truncated_normal(
        self,
        shape: tf.Tensor,
        mean: float = 0.0,
        stddev: float = 1.0,
        dtype: tf.DType | None = None,
        nonce: int | None = None,
    ) -> tf.Tensor:
        """Returns normal numbers of at most two standard deviations."""
        if scope.current() is None:
            return super().truncated_normal(shape, mean, stddev, dtype, nonce)
        drawn = _truncated_normal(
            _known(shape), self._seed_pair(), dtype=tf.as_dtype(dtype or "float32"), alg="philox"
        )
        return scope.replicate(drawn) * stddev + mean

    def make_seed_for_stateless_op(self) -> tf.Tensor:
        """Returns a seed (2,), of what a layer draws by itself."""
        return super().make_seed_for_stateless_op() if scope.current() is None else self._seed_pair()

    def _uniform(self, shape: tf.Tensor | Sequence[int]) -> tf.Tensor:
        """Returns float32 numbers in [0, 1), drawn whole on each device: what is drawn split depends on the mesh."""
        return scope.replicate(_uniform(shape, self._seed_pair(), dtype=tf.float32, alg="philox"))

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
    sizes: Any = noise_shape
    if isinstance(noise_shape, tf.Tensor):
        known = tf.get_static_value(noise_shape)
        sizes = noise_shape.op.inputs if known is None and noise_shape.op.type == "Pack" else known
    found = [tf.get_static_value(size) if tf.is_tensor(size) else size for size in sizes]
    return [int(whole if size is None else size) for size, whole in zip(found, inputs.shape, strict=True)]
