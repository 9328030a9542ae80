"""Convolutions and batch normalization in the forms that XLA computes fastest on a CPU.

The numbers are those of `jax.lax`'s and Keras's own, up to rounding.

XLA computes a convolution of an image with few channels, and the gradient of one with strides, several times slower
than its operations need: the latter spreads its input out, with zeros between, and multiplies those too. Here pixels
that are a stride apart become neighbors instead: on that grid a convolution with strides is one without.

Inside a loop XLA computes fast only those convolutions that are in one form already, NHWC images and HWIO kernels: its
pass that brings others to this form (ConvCanonicalization) reads a program's entry computation and no loop's body.
JAX's gradients have other forms, so they are written out here, with transposes.

Shapes: B batch, H and W a size of an image, C channels, O output channels; S strides, height by width.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
from jax import lax

from runner.engine.jax import private

_FORM = ("NHWC", "HWIO", "NHWC")
# Terms up to which a convolution is computed as a sum of shifted images: a 3x3 kernel on three channels has 27, and
# one on a gray image 9. Each term is a pass over the image, so convolutions with more of them are left to XLA.
_MOST_TERMS = 27

Pair = tuple[int, int]
Two = tuple[jax.Array, jax.Array]


def adopt(model: keras.Model) -> None:
    """Replaces the class of a model's stock layers of both kinds. Its variables, names and config stay as they are."""
    for layer in private.all_layers(model):
        # Exactly the stock class: a subclass may compute something else.
        fast = _FAST.get(type(layer))
        if fast is not None:
            # Not by Keras's own __setattr__, which would track the class.
            object.__setattr__(layer, "__class__", fast)


class Conv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """A convolution that computes the same as Keras's, faster on a CPU."""

    def convolution_op(self, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        """Returns the convolution of (batch, height, width, channel) images."""
        w = keras.ops.convert_to_tensor(kernel)
        is_plain = self.groups == 1 and set(self.dilation_rate) == {1} and self.data_format == "channels_last"
        are_float32 = all(isinstance(array, jax.Array) and array.dtype == jnp.float32 for array in (inputs, w))
        if not is_plain or not are_float32:
            return super().convolution_op(inputs, kernel)
        return convolution(inputs, w, tuple(self.strides), self.padding.upper())


class BatchNormalization(private.BatchNormalization):
    """Batch normalization whose gradient has a collective less on a mesh."""

    def moments(self, x: jax.Array) -> Two:
        """Returns mean and variance of each channel."""
        axes = tuple(dim for dim in range(x.ndim) if dim != self.axis % x.ndim)
        mean = jnp.mean(x, axes, keepdims=True)
        return jnp.squeeze(mean, axes), _variance(axes, x, mean)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _variance(axes: tuple[int, ...], x: jax.Array, mean: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x - mean), axes)


@_variance.defjvp  # type: ignore[untyped-decorator]
def _variance_tangent(axes: tuple[int, ...], primals: Two, tangents: Two) -> Two:
    x, mean = primals
    # The derivative by the mean is 0, the sum of what the examples differ from it by: JAX would compute it, over all
    # devices. This rule leaves it out. With `stop_gradient` second derivatives would be wrong.
    return _variance(axes, x, mean), jnp.mean(2 * (x - mean) * tangents[0], axes)


_FAST = {keras.layers.Conv2D: Conv2D, keras.layers.BatchNormalization: BatchNormalization}


def convolution(x_bhwc: jax.Array, w_hwco: jax.Array, strides: Pair, padding: str) -> jax.Array:
    """Returns the convolution of float32 images and a kernel (H, W, C, O); any axes may split them."""
    y_bhwo: jax.Array = _convolution(x_bhwc, w_hwco, strides, padding)
    return y_bhwo


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolution(x: jax.Array, w: jax.Array, strides: Pair, padding: str) -> jax.Array:
    height, width, channels, _ = w.shape
    if strides == (1, 1) and height * width * channels <= _MOST_TERMS:
        return _sum_of_shifted(x, w, padding)
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=_FORM)


def _forward(x: jax.Array, w: jax.Array, strides: Pair, padding: str) -> tuple[jax.Array, Two]:
    return _convolution(x, w, strides, padding), (x, w)


def _backward(strides: Pair, padding: str, residuals: Two, gradient: jax.Array) -> Two:
    """Returns the gradients of images and kernel, given that of the results."""
    x, w = residuals
    strides_divide_kernel = all(size % stride == 0 for size, stride in zip(w.shape[:2], strides, strict=True))
    # A kernel that the strides do not divide would have to be filled up with zeros.
    if strides != (1, 1) and strides_divide_kernel:
        of_x = _grid_image_gradient(x.shape, w, gradient, strides, padding)
        return of_x, _grid_kernel_gradient(x, w.shape, gradient, strides, padding)
    before = _zeros_before(x.shape, w.shape, strides, padding)
    of_x = _image_gradient(x.shape, w, gradient, strides, before)
    return of_x, _kernel_gradient(x, w.shape, gradient, strides, before)


_convolution.defvjp(_forward, _backward)


def _sum_of_shifted(x: jax.Array, w: jax.Array, padding: str) -> jax.Array:
    """Returns the convolution as a sum of shifted images. It is one pass if the kernel has few entries."""
    height, width, channels, _ = w.shape
    (top, bottom), (left, right) = lax.padtype_to_pads(x.shape[1:3], (height, width), (1, 1), padding)
    x = jnp.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows = x.shape[1] - height + 1
    columns = x.shape[2] - width + 1
    shifted = []
    for i, j, c in itertools.product(range(height), range(width), range(channels)):
        shifted.append(x[:, i : i + rows, j : j + columns, c : c + 1] * w[i, j, c])
    return sum(shifted)


def _image_gradient(
    shape: tuple[int, ...], w: jax.Array, gradient: jax.Array, strides: Pair, before: Sequence[int]
) -> jax.Array:
    """Returns (B, H, W, C), the gradient of images."""
    edges = []
    for dim in range(2):
        last_window = (gradient.shape[1 + dim] - 1) * strides[dim] - before[dim]
        low = w.shape[dim] - 1 - before[dim]
        edges.append((low, shape[1 + dim] - 1 - last_window))
    turned_hwoc = w[::-1, ::-1].transpose(0, 1, 3, 2)
    return lax.conv_general_dilated(
        gradient, turned_hwoc, (1, 1), edges, lhs_dilation=strides, dimension_numbers=_FORM
    )


def _kernel_gradient(
    x: jax.Array, shape: tuple[int, ...], gradient: jax.Array, strides: Pair, before: Sequence[int]
) -> jax.Array:
    """Returns (H, W, C, O), the gradient of a kernel."""
    after = []
    for dim in range(2):
        last_window = (gradient.shape[1 + dim] - 1) * strides[dim] - before[dim]
        after.append(last_window + shape[dim] - x.shape[1 + dim])
    # Negative where no window reaches the last rows or columns, which are cut off.
    x = x[:, : min(after[0], 0) or None, : min(after[1], 0) or None]
    edges = [(low, max(high, 0)) for low, high in zip(before, after, strict=True)]
    return _summed_over_batch(x.transpose(3, 1, 2, 0), gradient, edges, strides)


def _summed_over_batch(x_chwb: jax.Array, gradient: jax.Array, edges: Sequence[Pair], strides: Pair) -> jax.Array:
    """Returns (H, W, C, O), from a convolution over the examples."""
    gradient_hwbo = gradient.transpose(1, 2, 0, 3)
    w_chwo = lax.conv_general_dilated(
        x_chwb, gradient_hwbo, (1, 1), edges, rhs_dilation=strides, dimension_numbers=_FORM
    )
    return w_chwo.transpose(1, 2, 0, 3)


def _grid_image_gradient(
    shape: tuple[int, ...], w: jax.Array, gradient: jax.Array, strides: Pair, padding: str
) -> jax.Array:
    """Returns what `_image_gradient` does, for a kernel that the strides divide."""
    kernel_height, kernel_width, channels, outputs = w.shape
    stride_h, stride_w = strides
    rows = kernel_height // stride_h
    columns = kernel_width // stride_w
    # Kernel entries that are a stride apart become neighbors; those within a stride become channels.
    w = w.reshape(rows, stride_h, columns, stride_w, channels, outputs).transpose(0, 2, 5, 1, 3, 4)
    turned = w.reshape(rows, columns, outputs, stride_h * stride_w * channels)[::-1, ::-1]
    full = [(rows - 1, rows - 1), (columns - 1, columns - 1)]
    x = lax.conv_general_dilated(gradient, turned, (1, 1), full, dimension_numbers=_FORM)
    # Back from the grid: the channels within a stride become pixels again.
    grid_hw = x.shape[1:3]
    x = x.reshape(-1, *grid_hw, stride_h, stride_w, channels).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(-1, grid_hw[0] * stride_h, grid_hw[1] * stride_w, channels)
    edges = _edges(shape, (kernel_height, kernel_width), strides, padding, grid_hw)
    return _padded(x, [(-low, -high) for low, high in edges])


def _grid_kernel_gradient(
    x: jax.Array, shape: tuple[int, ...], gradient: jax.Array, strides: Pair, padding: str
) -> jax.Array:
    """Returns what `_kernel_gradient` does, for a kernel that the strides divide."""
    kernel_height, kernel_width, channels, outputs = shape
    stride_h, stride_w = strides
    rows = kernel_height // stride_h
    columns = kernel_width // stride_w
    grid_hw = (gradient.shape[1] + rows - 1, gradient.shape[2] + columns - 1)
    x = _padded(x, _edges(x.shape, (kernel_height, kernel_width), strides, padding, grid_hw))
    # Pixels that are a stride apart become neighbors; those within a stride become channels.
    x = x.reshape(-1, grid_hw[0], stride_h, grid_hw[1], stride_w, channels).transpose(2, 4, 5, 1, 3, 0)
    x_chwb = x.reshape(stride_h * stride_w * channels, grid_hw[0], grid_hw[1], -1)
    w = _summed_over_batch(x_chwb, gradient, [(0, 0), (0, 0)], (1, 1))
    w = w.reshape(rows, columns, stride_h, stride_w, channels, outputs)
    return w.transpose(0, 2, 1, 3, 4, 5).reshape(shape)


def _padded(x: jax.Array, edges_hw: Sequence[Pair]) -> jax.Array:
    """Returns images with zeros added to height and width. Negative edges are cut off."""
    no_edge = (0, 0, 0)
    edges = [(low, high, 0) for low, high in edges_hw]
    return lax.pad(x, jnp.zeros((), x.dtype), (no_edge, *edges, no_edge))


def _edges(shape: tuple[int, ...], kernel: Pair, strides: Pair, padding: str, grid_hw: Sequence[int]) -> list[Pair]:
    """Returns what a whole grid of strides adds to an image at each edge."""
    before = _zeros_before(shape, kernel, strides, padding)
    edges = []
    for dim in range(2):
        after = grid_hw[dim] * strides[dim] - shape[1 + dim] - before[dim]
        edges.append((before[dim], after))
    return edges


def _zeros_before(shape: tuple[int, ...], kernel: Sequence[int], strides: Pair, padding: str) -> list[int]:
    """Returns the zeros that the padding puts before an image's height and width."""
    return [low for low, _ in lax.padtype_to_pads(shape[1:3], kernel[:2], strides, padding)]
