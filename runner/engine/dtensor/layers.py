"""tf_keras as builders see it on a DTensor mesh: layers whose stock form DTensor can't compute are replaced.

Each replacement is a subclass with the same arguments, variables and arithmetic. What is wrong with the stock layer:
fused batch and layer normalisation, the gradients of average pooling and depthwise convolution, dilation, and
convolution or pooling of images that are split over height or width have no DTensor rule, nor has a gather from a
variable, or a concatenation along a split dim; a drawn mask depends on the mesh; integer indexing is silently wrong.
Convolutions and embeddings read their variables whole, see `whole_variables`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from runner.engine.dtensor import private
from runner.engine.patched import PatchedModule
from runner.model import scope


class Conv2D(tf_keras.layers.Conv2D):  # type: ignore[misc]
    """A convolution over whole images: split ones are gathered before it and split again after it."""

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Returns the convolution of (batch, height, width, channel) images, split as its input was."""
        if scope.current() is None:
            return super().convolution_op(inputs, kernel)
        x = scope.whole_images(inputs)
        rates = tuple(self.dilation_rate)
        if rates == (1, 1):
            y = super().convolution_op(x, kernel)
        else:
            y = tf.nn.conv2d(x, _dilated(kernel, rates), self.strides, self.padding.upper())
        return scope.as_images(y)


class DepthwiseConv2D(tf_keras.layers.DepthwiseConv2D):  # type: ignore[misc]
    """A depthwise convolution as the sum of its shifted products, whose gradients DTensor knows."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns (batch, height, width, channel * depth_multiplier)."""
        if scope.current() is None or self.data_format != "channels_last" or tuple(self.dilation_rate) != (1, 1):
            return super().call(inputs)
        x = scope.whole_images(inputs)
        height, width, channels, depth = self.depthwise_kernel.shape
        taps = tf.unstack(tf.reshape(tf.convert_to_tensor(self.depthwise_kernel), (height * width, channels, depth)))
        parts = _windows(x, (height, width), self.strides, self.padding, 0.0)
        y = tf.add_n([tf.expand_dims(part, -1) * tap for part, tap in zip(parts, taps, strict=True)])
        y = tf.reshape(y, [*y.shape[:3], channels * depth])
        if self.use_bias:
            y = y + self.bias
        return scope.as_images(y if self.activation is None else self.activation(y))


def _dilated(kernel: tf.Tensor, rates: tuple[int, int]) -> tf.Tensor:
    """Returns (height, width, in, out) with zeros between its rows and columns, which dilation means."""
    for dim, rate in enumerate(rates):
        shape = kernel.shape.as_list()
        spread = tf.pad(tf.expand_dims(kernel, dim + 1), [[0, rate - 1 if d == dim + 1 else 0] for d in range(5)])
        merged = tf.reshape(spread, [size * rate if d == dim else size for d, size in enumerate(shape)])
        kernel = tf.slice(merged, [0] * 4, [(s - 1) * rate + 1 if d == dim else s for d, s in enumerate(shape)])
    return kernel


def _windows(x: tf.Tensor, size: Sequence[int], strides: Sequence[int], padding: str, fill: float) -> list[tf.Tensor]:
    """Returns the (batch, rows, columns, channel) that each place of a window meets, height * width of them."""
    pads = [[0, 0], [0, 0], [0, 0], [0, 0]]
    counts = []
    for dim, (window, stride) in enumerate(zip(size, strides, strict=True), start=1):
        length = int(x.shape[dim])
        if padding.lower() == "same":
            count = -(-length // stride)
            total = max((count - 1) * stride + window - length, 0)
            pads[dim] = [total // 2, total - total // 2]
        else:
            count = (length - window) // stride + 1
        counts.append(count)
    x = tf.pad(x, pads, constant_values=fill)
    ends = [(count - 1) * stride + 1 for count, stride in zip(counts, strides, strict=True)]
    return [
        x[:, row : row + ends[0] : strides[0], column : column + ends[1] : strides[1], :]
        for row in range(size[0])
        for column in range(size[1])
    ]


class AveragePooling2D(tf_keras.layers.AveragePooling2D):  # type: ignore[misc]
    """A mean over windows, written out because DTensor has no gradient of the stock operation."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the mean of each window over the examples' own pixels."""
        if scope.current() is None or self.data_format not in (None, "channels_last"):
            return super().call(inputs)
        x = scope.whole_images(inputs)
        total = tf.add_n(_windows(x, self.pool_size, self.strides, self.padding, 0.0))
        ones = np.ones((1, *x.shape[1:3], 1), np.float32)
        count = sum(part.numpy() for part in _host(_windows, ones, self.pool_size, self.strides, self.padding, 0.0))
        return scope.as_images(total / tf.constant(count, total.dtype))


class MaxPooling2D(tf_keras.layers.MaxPooling2D):  # type: ignore[misc]
    """A maximum over windows of whole images: split ones are gathered before it and split again after it."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the maximum of each window."""
        if scope.current() is None:
            return super().call(inputs)
        return scope.as_images(super().call(scope.whole_images(inputs)))


def _host(function: Callable[..., list[tf.Tensor]], *arguments: Any) -> list[tf.Tensor]:
    """Calls a function of tensors at once, on the host, while a graph is being traced."""
    with tf.init_scope(), tf.device("CPU:0"):
        return function(*arguments)


class BatchNormalization(tf_keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalisation by plain reductions: over the global batch, whatever the mesh.

    The moving variance follows the batch's own, as in Keras 3; the fused kernel's is times n / (n - 1).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["fused"] = False
        kwargs.pop("synchronized", None)  # always so here
        super().__init__(*args, **kwargs)


class LayerNormalization(tf_keras.layers.LayerNormalization):  # type: ignore[misc]
    """Layer normalisation by plain reductions."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns inputs of mean 0 and variance 1 along the axes, scaled and shifted."""
        axes = [self.axis] if isinstance(self.axis, int) else list(self.axis)
        mean = tf.reduce_mean(inputs, axes, keepdims=True)
        centered = inputs - mean
        variance = tf.reduce_mean(tf.square(centered), axes, keepdims=True)
        y = centered * tf.math.rsqrt(variance + self.epsilon)
        shape = [size if dim in axes else 1 for dim, size in enumerate(inputs.shape)]
        if self.scale:
            y = y * (self.gamma if len(axes) == 1 else tf.reshape(self.gamma, shape))
        if self.center:
            y = y + (self.beta if len(axes) == 1 else tf.reshape(self.beta, shape))
        return y


class Dropout(tf_keras.layers.Dropout):  # type: ignore[misc]
    """Dropout whose mask is a function of seed, layer's name and step, the same on every mesh and in JAX.

    It is drawn whole on each device and then split as its input is: what is drawn under a layout depends on it.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the inputs with a share of `rate` set to zero and the rest scaled up, while training."""
        held = scope.current()
        if held is None:
            return super().call(inputs, training=training)
        if not training or self.rate == 0:
            return inputs
        noise = [int(n or size) for n, size in zip(self.noise_shape or inputs.shape, inputs.shape, strict=True)]
        seed = tf.stack([tf.constant(scope.mask_key(held.seed, self.name)), held.step])
        drawn = tf.random.stateless_uniform(noise, seed, dtype=tf.float32, alg="philox")
        keep = tf.cast(scope.replicate(drawn) >= self.rate, inputs.dtype)
        return inputs * keep / (1.0 - self.rate)


class Flatten(tf_keras.layers.Flatten):  # type: ignore[misc]
    """Flatten; where more than the first of the merged dims is split, the others are gathered."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns (batch, everything else)."""
        return super().call(scope.as_flat(inputs))


class Dense(tf_keras.layers.Dense):  # type: ignore[misc]
    """A dense layer whose input is split as its kernel's rows are: DTensor knows no product of two splits."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns (batch, ..., units)."""
        return super().call(scope.as_rows(inputs, self.kernel))


class Concatenate(tf_keras.layers.Concatenate):  # type: ignore[misc]
    """Tensors side by side, each laid by batch first: DTensor joins none along a dim that is split."""

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the tensors joined along the layer's axis."""
        return super().call([scope.by_batch(x) for x in inputs])


class Embedding(tf_keras.layers.Embedding):  # type: ignore[misc]
    """A vector a number; its table is read whole, for DTensor has no rule for a gather from a variable."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns (batch, ..., output_dim) of whole numbers (batch, ...)."""
        if scope.current() is None:
            return super().call(inputs)
        return tf.gather(tf.identity(self.embeddings), tf.cast(inputs, tf.int32))


_REPLACED = (
    Conv2D,
    DepthwiseConv2D,
    AveragePooling2D,
    MaxPooling2D,
    BatchNormalization,
    LayerNormalization,
    Dropout,
    Flatten,
    Dense,
    Concatenate,
    Embedding,
)
_SHORT_NAMES = {"MaxPool2D": MaxPooling2D, "AvgPool2D": AveragePooling2D, "Convolution2D": Conv2D}


@functools.cache
def dtensor_keras() -> ModuleType:
    """Returns `tf_keras` with `layers` that work on every mesh; all else is tf_keras's own."""
    layers = PatchedModule("tf_keras.layers", tf_keras.layers)
    for name, layer in ({layer.__name__: layer for layer in _REPLACED} | _SHORT_NAMES).items():
        setattr(layers, name, layer)
    patched = PatchedModule("tf_keras", tf_keras)
    patched.layers = layers  # type: ignore[attr-defined]
    return patched


def whole_variables(layer: tf.Module) -> list[tf.Variable]:
    """Returns the variables that a layer's operations need whole, however they are stored."""
    if isinstance(layer, private.Convolution | tf_keras.layers.DepthwiseConv2D | tf_keras.layers.Embedding):
        return list(layer.weights)
    return []
