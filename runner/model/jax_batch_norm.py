"""Batch normalisation whose gradient takes one sum over the devices; values are those of Keras 3 on JAX.

The gradient that JAX derives adds, in a sum over the devices of its own, a term that is 0 but for rounding: how the
variance depends on the mean. The formulas are of Ioffe and Szegedy, "Batch Normalization" (2015), section 3.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def normalize(x: Any, scale: Any, offset: Any, axis: int, epsilon: float) -> tuple[Any, Any, Any]:
    """Normalises an input by the moments over all dims but one.

    Args:
      x: float32 or float64, N examples or pixels of C channels.
      scale: (C,), or None.
      offset: (C,), or None.
      axis: dim of the channels.
      epsilon: added to the variance.

    Returns:
      The normalised input, and its mean and variance (C,). Gradients go through the first alone.
    """
    axis %= x.ndim
    channels = x.shape[axis]
    scale = jnp.ones((channels,), x.dtype) if scale is None else scale
    offset = jnp.zeros((channels,), x.dtype) if offset is None else offset
    y, mean, variance = _normalize(x, scale, offset, axis, epsilon)
    return y, lax.stop_gradient(mean), lax.stop_gradient(variance)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _normalize(x: Any, scale: Any, offset: Any, axis: int, epsilon: float) -> tuple[Any, Any, Any]:
    return _forward(x, scale, offset, axis, epsilon)[0]


def _forward(
    x: Any, scale: Any, offset: Any, axis: int, epsilon: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any, Any]]:
    others = tuple(dim for dim in range(x.ndim) if dim != axis)
    mean = jnp.mean(x, others)
    variance = jnp.mean(jnp.square(x - _along(mean, x, axis)), others)
    deviation = lax.rsqrt(variance + epsilon)
    factor = deviation * scale
    y = x * _along(factor, x, axis) + _along(offset - mean * factor, x, axis)
    return (y, mean, variance), (x, mean, deviation, scale)


def _backward(axis: int, epsilon: float, read: tuple[Any, Any, Any, Any], g: tuple[Any, Any, Any]) -> Any:
    del epsilon  # the deviation holds it
    x, mean, deviation, scale = read
    gradient = g[0]
    others = tuple(dim for dim in range(x.ndim) if dim != axis)
    count = x.size // x.shape[axis]
    centred = x - _along(mean, x, axis)
    of_offset = jnp.sum(gradient, others)
    of_scale = jnp.sum(gradient * centred, others) * deviation
    factor = scale * deviation
    of_x = _along(factor, x, axis) * (
        gradient - _along(of_offset / count, x, axis) - centred * _along(of_scale * deviation / count, x, axis)
    )
    return of_x, of_scale, of_offset


_normalize.defvjp(_forward, _backward)


def _along(values: Any, x: Any, axis: int) -> Any:
    """Reshapes (C,) to be broadcast over the other dims of x."""
    return values.reshape([-1 if dim == axis else 1 for dim in range(x.ndim)])
