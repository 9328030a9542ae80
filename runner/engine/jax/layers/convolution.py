"""Convolutions in the forms that XLA computes fastest on a CPU; the numbers are those of `jax.lax`'s own.

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
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

_FORM = ("NHWC", "HWIO", "NHWC")
_MOST_TERMS = 27  # of a sum of shifted images, as many as a 3x3 kernel has on three channels

Pair = tuple[int, int]
Two = tuple[jax.Array, jax.Array]


def convolution(x_bhwc: jax.Array, w_hwco: jax.Array, strides: Pair, padding: str) -> jax.Array:
    """Returns float32 (B, H', W', O), the convolution of images and a kernel, whatever the axes that split them.

    Args:
      x_bhwc: float32 images.
      w_hwco: float32 kernel.
      strides: by height and width.
      padding: `SAME` or `VALID`.
    """
    found: jax.Array = _convolution(x_bhwc, w_hwco, strides, padding)
    return found


def _plain(x: jax.Array, w: jax.Array, strides: Pair, padding: str) -> jax.Array:
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=_FORM)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolution(x: jax.Array, w: jax.Array, strides: Pair, padding: str) -> jax.Array:
    height, width, channels, _ = w.shape
    if strides == (1, 1) and height * width * channels <= _MOST_TERMS:
        return _shifted(x, w, padding)
    return _plain(x, w, strides, padding)


def _forward(x: jax.Array, w: jax.Array, strides: Pair, padding: str) -> tuple[jax.Array, Two]:
    return _convolution(x, w, strides, padding), (x, w)


def _backward(strides: Pair, padding: str, read: Two, g: jax.Array) -> Two:
    x, w = read
    # A kernel that the strides do not divide would have to be filled up with zeros.
    if strides != (1, 1) and all(size % stride == 0 for size, stride in zip(w.shape, strides, strict=False)):
        return _grid_image_gradient(x.shape, w, g, strides, padding), _grid_kernel_gradient(
            x, w.shape, g, strides, padding
        )
    before = _before(x.shape, w.shape, strides, padding)
    return _image_gradient(x.shape, w, g, strides, before), _kernel_gradient(x, w.shape, g, strides, before)


_convolution.defvjp(_forward, _backward)


def _shifted(x: jax.Array, w: jax.Array, padding: str) -> jax.Array:
    """Sums the image, shifted and weighed, over the kernel's entries: one pass where there are few of them."""
    height, width, channels, _ = w.shape
    (top, bottom), (left, right) = lax.padtype_to_pads(x.shape[1:3], (height, width), (1, 1), padding)
    x = jnp.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows = x.shape[1] - height + 1
    columns = x.shape[2] - width + 1
    return sum(
        x[:, i : i + rows, j : j + columns, c : c + 1] * w[i, j, c]
        for i in range(height)
        for j in range(width)
        for c in range(channels)
    )


def _image_gradient(
    shape: tuple[int, ...], w: jax.Array, g: jax.Array, strides: Pair, before: Sequence[int]
) -> jax.Array:
    """Returns (B, H, W, C) of a kernel and the gradient (B, H', W', O) of what came out."""
    sizes = zip(shape[1:3], w.shape[:2], g.shape[1:3], strides, before, strict=True)
    edges = [(k - 1 - low, size - 1 - (n - 1) * stride + low) for size, k, n, stride, low in sizes]
    turned = w[::-1, ::-1].transpose(0, 1, 3, 2)
    return lax.conv_general_dilated(g, turned, (1, 1), edges, lhs_dilation=strides, dimension_numbers=_FORM)


def _kernel_gradient(
    x: jax.Array, shape: tuple[int, ...], g: jax.Array, strides: Pair, before: Sequence[int]
) -> jax.Array:
    """Returns (H, W, C, O) of images and the gradient (B, H', W', O) of what came out."""
    sizes = zip(x.shape[1:3], shape[:2], g.shape[1:3], strides, before, strict=True)
    after = [k + (n - 1) * stride - size - low for size, k, n, stride, low in sizes]
    x = x[:, : min(after[0], 0) or None, : min(after[1], 0) or None]  # without what no window reaches
    edges = [(low, max(high, 0)) for low, high in zip(before, after, strict=True)]
    return _summed_over_batch(x.transpose(3, 1, 2, 0), g, edges, strides)


def _summed_over_batch(x_chwb: jax.Array, g: jax.Array, edges: Sequence[Pair], strides: Pair) -> jax.Array:
    """Returns (H, W, C, O): the examples are what a convolution calls its input's channels."""
    found = lax.conv_general_dilated(
        x_chwb, g.transpose(1, 2, 0, 3), (1, 1), edges, rhs_dilation=strides, dimension_numbers=_FORM
    )
    return found.transpose(1, 2, 0, 3)


def _grid_image_gradient(shape: tuple[int, ...], w: jax.Array, g: jax.Array, strides: Pair, padding: str) -> jax.Array:
    """Returns what `_image_gradient` does, of a kernel that the strides divide."""
    (kh, kw, channels, out), (sh, sw) = w.shape, strides
    rows = kh // sh
    columns = kw // sw
    w = w.reshape(rows, sh, columns, sw, channels, out).transpose(0, 2, 5, 1, 3, 4)
    turned = w.reshape(rows, columns, out, sh * sw * channels)[::-1, ::-1]
    full = [(rows - 1, rows - 1), (columns - 1, columns - 1)]
    x = lax.conv_general_dilated(g, turned, (1, 1), full, dimension_numbers=_FORM)
    grid_hw = x.shape[1:3]
    x = x.reshape(-1, *grid_hw, sh, sw, channels).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(-1, grid_hw[0] * sh, grid_hw[1] * sw, channels)
    edges = _edges(shape, (kh, kw), strides, padding, grid_hw)
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((-low, -high, 0) for low, high in edges), (0, 0, 0)))


def _grid_kernel_gradient(
    x: jax.Array, shape: tuple[int, ...], g: jax.Array, strides: Pair, padding: str
) -> jax.Array:
    """Returns what `_kernel_gradient` does, of a kernel that the strides divide."""
    (kh, kw, channels, out), (sh, sw) = shape, strides
    grid_hw = [n + k // s - 1 for n, k, s in zip(g.shape[1:3], (kh, kw), strides, strict=True)]
    edges = _edges(x.shape, (kh, kw), strides, padding, grid_hw)
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((low, high, 0) for low, high in edges), (0, 0, 0)))
    x = x.reshape(-1, grid_hw[0], sh, grid_hw[1], sw, channels).transpose(2, 4, 5, 1, 3, 0)
    w = _summed_over_batch(x.reshape(sh * sw * channels, *grid_hw, -1), g, [(0, 0)] * 2, (1, 1))
    return w.reshape(kh // sh, kw // sw, sh, sw, channels, out).transpose(0, 2, 1, 3, 4, 5).reshape(shape)


def _edges(shape: tuple[int, ...], kernel: Pair, strides: Pair, padding: str, grid_hw: Sequence[int]) -> list[Pair]:
    """Returns what must be added to an image's height and width, at each end, to give a whole grid."""
    before = _before(shape, kernel, strides, padding)
    sizes = zip(grid_hw, strides, shape[1:3], before, strict=True)
    return [(low, points * stride - size - low) for points, stride, size, low in sizes]


def _before(shape: tuple[int, ...], kernel: Sequence[int], strides: Pair, padding: str) -> list[int]:
    """Returns the zeros that the padding puts before an image's height and width."""
    return [low for low, _ in lax.padtype_to_pads(shape[1:3], kernel[:2], strides, padding)]
