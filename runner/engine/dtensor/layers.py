"""Layers of a model that a mesh needs otherwise laid, by the classes of its instances.

Builders use tf_keras as it is. `adopt` gives the layers of one model, those of a user's subclasses too, classes whose
calls lay their inputs as DTensor can compute with them: whole images before a convolution, a product's two sides
split alike, nothing split where tensors are joined. Arguments, variables and arithmetic stay tf_keras's own; but for
layer normalization, whose fused form would merge split dims. What has no rule in DTensor at all is in `.operations`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from runner.engine.dtensor import private
from runner.model import scope


class Conv2D(tf_keras.layers.Conv2D):  # type: ignore[misc]
    """A convolution over whole images: split ones are gathered before it and split again after it."""

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Returns the convolution of (batch, height, width, channel) images, split as its input was."""
        if scope.current() is None or len(inputs.shape) != 4:
            return super().convolution_op(inputs, kernel)
        return scope.as_images(super().convolution_op(scope.whole_images(inputs), kernel))


class _OfWholeImages:
    """Computes over whole images: split ones are gathered before it and split again after it."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns what the layer gives, split as its input was."""
        if scope.current() is None:
            return super().call(inputs)  # type: ignore[misc]
        return scope.as_images(super().call(scope.whole_images(inputs)))  # type: ignore[misc]


class _ByBatch:
    """Computes with an input that is split along its examples alone."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns what the layer gives."""
        return super().call(scope.by_batch(inputs))  # type: ignore[misc]


class LayerNormalization(tf_keras.layers.LayerNormalization):  # type: ignore[misc]
    """Layer normalization by plain reductions."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns inputs of mean 0 and variance 1 along the axes, scaled and shifted."""
        if scope.current() is None:
            return super().call(inputs)
        given = tf.cast(inputs, self.compute_dtype)
        x = tf.cast(given, tf.float32) if given.dtype in (tf.float16, tf.bfloat16) else given
        axes = [self.axis] if isinstance(self.axis, int) else list(self.axis)
        mean = tf.reduce_mean(x, axes, keepdims=True)
        centered = x - mean
        variance = tf.reduce_mean(tf.square(centered), axes, keepdims=True)
        y = centered * tf.math.rsqrt(variance + self.epsilon)
        last = axes in ([-1], [len(x.shape) - 1])
        shape = [size if dim in axes else 1 for dim, size in enumerate(x.shape)]
        if self.scale:
            y = y * tf.cast(self.gamma if last else tf.reshape(self.gamma, shape), x.dtype)
        if self.center:
            y = y + tf.cast(self.beta if last else tf.reshape(self.beta, shape), x.dtype)
        return tf.cast(y, given.dtype)


class Flatten(tf_keras.layers.Flatten):  # type: ignore[misc]
    """Flatten; where more than the first of the merged dims is split, the others are gathered."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns (batch, everything else)."""
        return super().call(scope.as_flat(inputs))


class Dense(tf_keras.layers.Dense):  # type: ignore[misc]
    """A dense layer whose input is split as its kernel's rows are: DTensor knows no product of two splits."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns (batch, ..., units)."""
        return super().call(scope.as_rows(inputs, private.uncast(self.kernel)))


class Concatenate(tf_keras.layers.Concatenate):  # type: ignore[misc]
    """Tensors side by side, each laid by batch first: DTensor joins none along a dim that is split."""

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the tensors joined along the layer's axis."""
        return super().call([scope.by_batch(x) for x in inputs])


_LAID: dict[type, Sequence[type]] = {
    _OfWholeImages: (
        tf_keras.layers.DepthwiseConv2D,
        tf_keras.layers.SeparableConv2D,
        tf_keras.layers.Conv2DTranspose,
        tf_keras.layers.AveragePooling2D,
        tf_keras.layers.MaxPooling2D,
    ),
    _ByBatch: (
        tf_keras.layers.Conv1D,
        tf_keras.layers.Conv3D,
        tf_keras.layers.Conv1DTranspose,
        tf_keras.layers.Conv3DTranspose,
        tf_keras.layers.DepthwiseConv1D,
        tf_keras.layers.SeparableConv1D,
        tf_keras.layers.AveragePooling1D,
        tf_keras.layers.AveragePooling3D,
        tf_keras.layers.MaxPooling1D,
        tf_keras.layers.MaxPooling3D,
    ),
}
# tf_keras's class -> the one that stands for it
_ADOPTED: dict[type, type] = {
    each.__bases__[0]: each for each in (Conv2D, LayerNormalization, Flatten, Dense, Concatenate)
}
_ADOPTED |= {
    stock: type(stock.__name__, (laying, stock), {"__doc__": laying.__doc__})
    for laying, stocks in _LAID.items()
    for stock in stocks
}
# They cut their kernels gate by gate.
_CELLS = (tf_keras.layers.LSTMCell, tf_keras.layers.GRUCell, tf_keras.layers.SimpleRNNCell)


def adopt(model: tf.Module) -> None:
    """Gives the layers of a model the classes that a mesh needs.

    Args:
      model: built; its layers' variables and attributes stay as they are.
    """
    for layer in model.submodules:
        if isinstance(layer, tf_keras.layers.Layer):
            layer.__class__ = _adopted(type(layer))  # type: ignore[arg-type]  # a class is hashable


@functools.cache
def _adopted(own: Any) -> type:
    """Returns the class that stands for a layer's: itself where a mesh computes with it as it is.

    A user's subclass of one of tf_keras's layers stays in front, so that its `super()` reaches the one that lays.
    """
    given: type = own
    base = next((each for each in given.__mro__ if each in _ADOPTED), None)
    if base is None or issubclass(given, _ADOPTED[base]):
        return given
    if given is base:
        return _ADOPTED[base]
    return type(own.__name__, (own, _ADOPTED[base]), {"__doc__": own.__doc__, "__module__": own.__module__})


def whole_variables(layer: tf.Module) -> list[tf.Variable]:
    """Returns the variables that a layer's operations need whole, however they are stored."""
    if isinstance(layer, (private.Convolution, tf_keras.layers.Embedding, *_CELLS)):
        return list(layer.weights)
    return []
