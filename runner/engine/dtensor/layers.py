"""Layers whose inputs need another sharding on a mesh than they arrive in.

Builders use tf_keras as it is. `adopt` gives the layers of one model, including those of a user's subclasses, classes
whose calls reshard their inputs so that DTensor can compute with them: a convolution's are sharded by examples alone,
both sides of a product are sharded alike, and nothing is sharded where tensors are joined. Arguments, variables and
arithmetic stay tf_keras's own, except for layer normalization, whose fused form DTensor has no rule for. Operations
that it has no rule for at all are in `.operations`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from runner.engine.dtensor import private
from runner.errors import ConfigError
from runner.model import scope


class _ByBatch:
    """A convolution or a pooling window, whose input and output are sharded along their examples only.

    A sharding that a later layer asks for, such as that of a dense kernel's rows, would else propagate back to it.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return scope.by_batch(super().call(scope.by_batch(inputs)))  # type: ignore[misc]


class LayerNormalization(tf_keras.layers.LayerNormalization):  # type: ignore[misc]
    """Layer normalization by plain reductions."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns inputs of mean 0 and variance 1 along the axes, scaled and shifted."""
        if scope.current() is None:
            return super().call(inputs)
        x = tf.cast(inputs, self.compute_dtype)
        dims = [self.axis] if isinstance(self.axis, int) else list(self.axis)
        mean = tf.reduce_mean(x, dims, keepdims=True)
        centered = x - mean
        variance = tf.reduce_mean(tf.square(centered), dims, keepdims=True)
        y = centered * tf.math.rsqrt(variance + self.epsilon)
        # The weights of the last dim broadcast as they are; those of other dims need dims of 1 after them.
        is_of_last_dim = dims in ([-1], [len(x.shape) - 1])
        broadcast_shape = [size if dim in dims else 1 for dim, size in enumerate(x.shape)]

        def along_dims(weight: tf.Variable) -> tf.Variable | tf.Tensor:
            if is_of_last_dim:
                return weight
            return tf.reshape(weight, broadcast_shape)

        if self.scale:
            y = y * tf.cast(along_dims(self.gamma), x.dtype)
        if self.center:
            y = y + tf.cast(along_dims(self.beta), x.dtype)
        return y


class Dense(tf_keras.layers.Dense):  # type: ignore[misc]
    """A dense layer whose input is sharded as its kernel's rows are: DTensor can't multiply other shardings."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns (batch, ..., units)."""
        return super().call(scope.as_rows(inputs, self.kernel))


class Concatenate(tf_keras.layers.Concatenate):  # type: ignore[misc]
    """Joined tensors, each sharded along its examples first: DTensor joins none along a sharded dim."""

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the tensors joined along the layer's axis."""
        return super().call(list(map(scope.by_batch, inputs)))


# tf_keras's classes that `_ByBatch` is combined with.
_WINDOWS = (
    tf_keras.layers.Conv1D,
    tf_keras.layers.Conv2D,
    tf_keras.layers.MaxPooling1D,
    tf_keras.layers.MaxPooling2D,
)
# Layers whose operations, or their gradients, DTensor has no rule for. Recurrent layers of
# any kind are subclasses of RNN, a 3-D transposed convolution is one of Conv3D.
_NOT_TAKEN = (
    tf_keras.layers.Conv1DTranspose,
    tf_keras.layers.Conv2DTranspose,
    tf_keras.layers.Conv3D,
    tf_keras.layers.DepthwiseConv1D,
    tf_keras.layers.DepthwiseConv2D,
    tf_keras.layers.SeparableConv1D,
    tf_keras.layers.SeparableConv2D,
    tf_keras.layers.AveragePooling1D,
    tf_keras.layers.AveragePooling2D,
    tf_keras.layers.AveragePooling3D,
    tf_keras.layers.MaxPooling3D,
    tf_keras.layers.RNN,
    tf_keras.layers.LSTMCell,
    tf_keras.layers.GRUCell,
    tf_keras.layers.SimpleRNNCell,
)
# Layers that draw dropout masks, see `.masks`. Others draw numbers that would depend on the mesh.
_DROPOUT = (tf_keras.layers.Dropout, tf_keras.layers.Attention, tf_keras.layers.AdditiveAttention)


def check_taken(model: tf.Module) -> None:
    """Rejects layers for whose operations DTensor has no rule."""
    for layer in model.submodules:
        kind = ""
        draws_others = isinstance(layer, private.RandomLayer) and not isinstance(layer, _DROPOUT)
        if isinstance(layer, _NOT_TAKEN) or draws_others:
            kind = type(layer).__name__
        elif isinstance(layer, tf_keras.layers.Layer) and layer.compute_dtype != layer.variable_dtype:
            kind = f"{type(layer).__name__} of mixed precision"
        elif isinstance(layer, private.Convolution) and (layer.groups > 1 or set(layer.dilation_rate) != {1}):
            kind = f"{type(layer).__name__} with groups or dilation"
        if kind:
            raise ConfigError(
                f"engine=keras_dtensor: DTensor can't compute layer {layer.name} ({kind}) on a mesh; set engine=jax"
            )


def _adopted_classes() -> dict[type, type]:
    classes: dict[type, type] = {}
    for own_class in (LayerNormalization, Dense, Concatenate):
        classes[own_class.__bases__[0]] = own_class
    for stock in _WINDOWS:
        classes[stock] = type(stock.__name__, (_ByBatch, stock), {"__doc__": _ByBatch.__doc__})
    return classes


_ADOPTED = _adopted_classes()


def adopt(model: tf.Module) -> None:
    """Gives the layers of a model the classes that they need on a mesh."""
    for layer in model.submodules:
        if isinstance(layer, tf_keras.layers.Layer):
            layer.__class__ = _adopted(type(layer))  # type: ignore[arg-type]  # a class is hashable


@functools.cache
def _adopted(layer_class: Any) -> type:
    """Returns the class that replaces a layer's, itself if it needs no other sharding.

    A user's subclass of one of tf_keras's layers stays first, so that its `super()` reaches the class that reshards.
    """
    original: type = layer_class
    stock = next((base for base in original.__mro__ if base in _ADOPTED), None)
    if stock is None or issubclass(original, _ADOPTED[stock]):
        return original
    if original is stock:
        return _ADOPTED[stock]
    attributes = {"__doc__": original.__doc__, "__module__": original.__module__}
    return type(original.__name__, (original, _ADOPTED[stock]), attributes)


def whole_variables(layer: tf.Module) -> list[tf.Variable]:
    """Returns the variables that a layer's operations need whole."""
    if isinstance(layer, (private.Convolution, tf_keras.layers.Embedding)):
        return list(layer.weights)
    return []
