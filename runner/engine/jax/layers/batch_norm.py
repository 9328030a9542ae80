"""Batch normalization for which the devices meet once, and once in its gradient; values are those of Keras 3 on JAX.

Written as on one device, the mean is summed over the devices, then the variance from it. Here each device takes the
moments of its own examples, and they are joined by the formula of Chan, Golub and LeVeque, "Updating Formulae and a
Pairwise Algorithm for Computing Sample Variances" (1979), which is as exact. The gradient that JAX derives adds, in a
sum over the devices of its own, a term that is 0 but for rounding: how the variance depends on the mean. The formulas
are of Ioffe and Szegedy, "Batch Normalization" (2015), section 3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

Three = tuple[jax.Array, jax.Array, jax.Array]
Read = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@dataclass(frozen=True)
class Parts:
    """How a batch's examples, the first dim of an input, are split.

    Attributes:
      count: of the parts.
      gathered: makes an array that has a row for each part whole along these on every device.
    """

    count: int
    gathered: Callable[[jax.Array], jax.Array]


def normalize(
    x: jax.Array, scale: jax.Array, offset: jax.Array, axis: int, epsilon: float, parts: Parts | None = None
) -> Three:
    """Normalizes an input by the moments over all dims but one.

    Args:
      x: float32 or float64, N examples or pixels of C channels.
      scale: (C,), or None.
      offset: (C,), or None.
      axis: dim of the channels.
      epsilon: added to the variance.
      parts: how the examples are split; None: they are not, or this is not known.

    Returns:
      The normalized input, and its mean and variance (C,). Gradients go through the first alone.
    """
    axis %= x.ndim
    channels = x.shape[axis]
    scale = jnp.ones((channels,), x.dtype) if scale is None else scale
    offset = jnp.zeros((channels,), x.dtype) if offset is None else offset
    if parts is not None and (axis == 0 or parts.count == 1 or x.shape[0] % parts.count):
        parts = None
    y, mean, variance = _normalize(x, scale, offset, axis, epsilon, parts)
    return y, lax.stop_gradient(mean), lax.stop_gradient(variance)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _normalize(
    x: jax.Array, scale: jax.Array, offset: jax.Array, axis: int, epsilon: float, parts: Parts | None
) -> Three:
    return _forward(x, scale, offset, axis, epsilon, parts)[0]


def _forward(
    x: jax.Array, scale: jax.Array, offset: jax.Array, axis: int, epsilon: float, parts: Parts | None
) -> tuple[Three, Read]:
    mean, variance = _moments(x, axis) if parts is None else _joined_moments(x, axis, parts)
    deviation = lax.rsqrt(variance + epsilon)
    factor = deviation * scale
    y = x * _along(factor, x, axis) + _along(offset - mean * factor, x, axis)
    return (y, mean, variance), (x, mean, deviation, scale)


def _moments(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    others = tuple(dim for dim in range(x.ndim) if dim != axis)
    mean = jnp.mean(x, others)
    return mean, jnp.mean(jnp.square(x - _along(mean, x, axis)), others)


def _joined_moments(x: jax.Array, axis: int, parts: Parts) -> tuple[jax.Array, jax.Array]:
    own = jax.vmap(lambda part: jnp.stack(_moments(part, axis)))(x.reshape(parts.count, -1, *x.shape[1:]))
    means, variances = jnp.moveaxis(parts.gathered(own), 1, 0)
    mean = jnp.mean(means, 0)
    return mean, jnp.mean(variances + jnp.square(means - mean), 0)


def _backward(axis: int, epsilon: float, parts: Parts | None, read: Read, g: Three) -> Three:
    del epsilon, parts  # the deviation holds the one, and sums need not know the other
    x, mean, deviation, scale = read
    gradient = g[0]
    others = tuple(dim for dim in range(x.ndim) if dim != axis)
    count = x.size // x.shape[axis]
    centerd = x - _along(mean, x, axis)
    of_offset = jnp.sum(gradient, others)
    of_scale = jnp.sum(gradient * centerd, others) * deviation
    factor = scale * deviation
    of_x = _along(factor, x, axis) * (
        gradient - _along(of_offset / count, x, axis) - centerd * _along(of_scale * deviation / count, x, axis)
    )
    return of_x, of_scale, of_offset


_normalize.defvjp(_forward, _backward)


def _along(values: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    """Reshapes (C,) to be broadcast over the other dims of x."""
    return values.reshape([-1 if dim == axis else 1 for dim in range(x.ndim)])
