"""Batch normalization with one collective, and one more in its gradient.

Values are those of Keras 3 on JAX.

Written as on one device, the mean is summed over the devices, and then the variance from it. Here each device
computes the moments of its own examples, and they are joined by the formula of Chan, Golub and LeVeque, "Updating
Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979), which is as exact. The gradient that JAX
derives adds a term that is 0 except for rounding, how the variance depends on the mean, in a sum over the devices of
its own. The formulas are those of Ioffe and Szegedy, "Batch Normalization" (2015), section 3.

Shapes: C channels; P parts of the examples. Other dims of an input x are examples or pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

# Normalized input, mean (C,), variance (C,); or the gradients of input, scale and offset.
Three = tuple[jax.Array, jax.Array, jax.Array]
# What the gradient reads: input, mean (C,), 1 / standard deviation (C,), scale (C,).
Residuals = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@dataclass(frozen=True)
class Parts:
    """How a batch's examples, the first dim of an input, are split.

    Attributes:
      count: of the parts.
      gathered: makes an array with one row per part replicated along its first dim.
    """

    count: int
    gathered: Callable[[jax.Array], jax.Array]


def normalize(
    x: jax.Array,
    scale: jax.Array | None,
    offset: jax.Array | None,
    axis: int,
    epsilon: float,
    parts: Parts | None = None,
) -> Three:
    """Normalizes an input by its moments over all dims but one.

    Args:
      x: float32 or float64.
      scale: (C,); None: 1.
      offset: (C,); None: 0.
      parts: how the examples are split; None: they are not, or this is not known.

    Returns:
      The normalized input, and its mean and variance (C,). Gradients go through the first alone.
    """
    axis %= x.ndim
    channels = x.shape[axis]
    if scale is None:
        scale = jnp.ones((channels,), x.dtype)
    if offset is None:
        offset = jnp.zeros((channels,), x.dtype)
    # In these cases the parts have no moments of their own, or there is one part.
    if parts is not None and (axis == 0 or parts.count == 1 or x.shape[0] % parts.count):
        parts = None
    y, mean, variance = _normalize(x, scale, offset, axis, epsilon, parts)
    return y, lax.stop_gradient(mean), lax.stop_gradient(variance)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _normalize(
    x: jax.Array, scale: jax.Array, offset: jax.Array, axis: int, epsilon: float, parts: Parts | None
) -> Three:
    results, _ = _forward(x, scale, offset, axis, epsilon, parts)
    return results


def _forward(
    x: jax.Array, scale: jax.Array, offset: jax.Array, axis: int, epsilon: float, parts: Parts | None
) -> tuple[Three, Residuals]:
    if parts is None:
        mean, variance = _moments(x, axis)
    else:
        mean, variance = _joined_moments(x, axis, parts)
    inverse_deviation = lax.rsqrt(variance + epsilon)
    factor = inverse_deviation * scale
    y = x * _along(factor, x, axis) + _along(offset - mean * factor, x, axis)
    return (y, mean, variance), (x, mean, inverse_deviation, scale)


def _moments(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns mean and variance (C,) over all dims but `axis`."""
    others = _other_dims(x, axis)
    mean = jnp.mean(x, others)
    # Not the mean square minus the squared mean: in float32, that difference loses its digits where the mean is large
    # next to the deviation.
    return mean, jnp.mean(jnp.square(x - _along(mean, x, axis)), others)


def _joined_moments(x: jax.Array, axis: int, parts: Parts) -> tuple[jax.Array, jax.Array]:
    """Returns mean and variance (C,) of all examples, from those of each part. Both take one collective."""
    x_parts = x.reshape(parts.count, -1, *x.shape[1:])
    moments_p2c = jax.vmap(lambda part: jnp.stack(_moments(part, axis)))(x_parts)
    means_pc, variances_pc = jnp.moveaxis(parts.gathered(moments_p2c), 1, 0)
    # All parts have equal numbers of examples, as `normalize` ensures, so no part needs a weight.
    mean = jnp.mean(means_pc, 0)
    return mean, jnp.mean(variances_pc + jnp.square(means_pc - mean), 0)


def _backward(axis: int, epsilon: float, parts: Parts | None, residuals: Residuals, gradients: Three) -> Three:
    # The deviation contains epsilon, and the sums over all examples need no parts.
    del epsilon, parts
    x, mean, inverse_deviation, scale = residuals
    # Mean and variance have none: `normalize` stops theirs.
    gradient, _, _ = gradients
    others = _other_dims(x, axis)
    count = x.size // x.shape[axis]
    centered = x - _along(mean, x, axis)
    of_offset = jnp.sum(gradient, others)
    of_scale = jnp.sum(gradient * centered, others) * inverse_deviation
    factor = scale * inverse_deviation
    of_x = _along(factor, x, axis) * (
        gradient
        - _along(of_offset / count, x, axis)
        - centered * _along(of_scale * inverse_deviation / count, x, axis)
    )
    return of_x, of_scale, of_offset


_normalize.defvjp(_forward, _backward)


def _other_dims(x: jax.Array, axis: int) -> tuple[int, ...]:
    return tuple(dim for dim in range(x.ndim) if dim != axis)


def _along(values_c: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    """Reshapes (C,) to broadcast over the other dims of x."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return values_c.reshape(shape)
