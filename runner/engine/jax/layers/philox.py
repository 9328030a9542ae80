"""The numbers of `tf.random.stateless_uniform` in JAX, so that both frameworks drop out the same units.

Philox 4x32-10 is from Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011); how key and counter are
made of a seed, and floats of the bits, is that of TensorFlow's stateless operations on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_SCRAMBLE = (0x3EC8F720, 0x02461E29)  # the key under which TensorFlow turns a seed into key and counter
_ONE = 127 << 23  # exponent of floats in [1, 2)


def uniform(shape: Sequence[int], seed: tuple[int | jax.Array, int | jax.Array]) -> jax.Array:
    """Returns float32 numbers in [0, 1) of a shape.

    Args:
      shape: at most 2**34 numbers.
      seed: two whole numbers, Python's or scalar int32 arrays, of which none is negative.
    """
    first, second = (jnp.asarray(part).astype(jnp.uint32) for part in seed)
    zero = jnp.uint32(0)
    key0, key1, high0, high1 = _philox((first, zero, second, zero), tuple(map(jnp.uint32, _SCRAMBLE)))
    # Four numbers a block. Where blocks end with rows they keep the dims of the shape, so that a mesh may split these.
    whole = bool(shape) and shape[-1] % 4 == 0
    dims = (*shape[:-1], shape[-1] // 4) if whole else (-(-math.prod(shape) // 4),)
    blocks = sum(
        lax.broadcasted_iota(jnp.uint32, dims, dim) * jnp.uint32(math.prod(dims[dim + 1 :]))
        for dim in range(len(dims))
    )
    numbers = jnp.stack(_philox((blocks, zero, high0, high1), (key0, key1)), axis=-1)
    bits = numbers.reshape(tuple(shape)) if whole else numbers.reshape(-1)[: math.prod(shape)].reshape(tuple(shape))
    floats = lax.bitcast_convert_type((bits & 0x7FFFFF) | jnp.uint32(_ONE), jnp.float32)
    return floats - 1.0


def _philox(
    counter: tuple[jax.Array, jax.Array, jax.Array, jax.Array], key: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    def next_round(_: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (c0, c1, c2, c3), (k0, k1) = state
        high0, low0 = _product(_MULTIPLIERS[0], c0)
        high1, low1 = _product(_MULTIPLIERS[1], c2)
        counter = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        return counter, (k0 + jnp.uint32(_WEYL[0]), k1 + jnp.uint32(_WEYL[1]))

    # A loop: written out, XLA's CPU compiler puts the rounds in one fusion that computes each again for every use.
    begun = tuple(jnp.broadcast_arrays(*counter)), tuple(map(jnp.asarray, key))
    numbers: tuple[jax.Array, jax.Array, jax.Array, jax.Array] = lax.fori_loop(0, _ROUNDS, next_round, begun)[0]
    return numbers


def _product(constant: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the high and the low 32 bits of a product, by halves: JAX has no 64-bit numbers unless told to."""
    a_high = jnp.uint32(constant >> 16)
    a_low = jnp.uint32(constant & 0xFFFF)
    x_high = x >> 16
    x_low = x & 0xFFFF
    middle = a_high * x_low + ((a_low * x_low) >> 16)
    rest = a_low * x_high + (middle & 0xFFFF)
    return a_high * x_high + (middle >> 16) + (rest >> 16), jnp.uint32(constant) * x
