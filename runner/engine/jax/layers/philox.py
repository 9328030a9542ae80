"""The numbers of `tf.random.stateless_uniform` in JAX, so that both frameworks drop out the same units.

Philox 4x32-10 is from Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011). How key and counter are
derived from a seed, and floats from the bits, is that of TensorFlow's stateless operations on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

Four = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
Two = tuple[jax.Array, jax.Array]

# Of Philox 4x32-10: rounds, multipliers of the counter, and what each round adds to the key.
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
# The key under which TensorFlow turns a seed into key and counter.
_SCRAMBLE = (0x3EC8F720, 0x02461E29)
# A block gives four numbers.
_BLOCK = 4
# Bits of a float32's mantissa, and the sign and exponent of floats in [1, 2).
_MANTISSA = 0x7FFFFF
_ONE = 127 << 23


def uniform(shape: Sequence[int], seed: tuple[int | jax.Array, int | jax.Array]) -> jax.Array:
    """Returns float32 numbers in [0, 1) of a shape, from a seed of two non-negative integers."""
    first, second = (jnp.asarray(part).astype(jnp.uint32) for part in seed)
    zero = jnp.uint32(0)
    scramble = jnp.uint32(_SCRAMBLE[0]), jnp.uint32(_SCRAMBLE[1])
    key0, key1, high0, high1 = _philox((first, zero, second, zero), scramble)
    # If blocks end with rows they keep the dims of the shape, so that a mesh may split these.
    rows_are_blocks = bool(shape) and shape[-1] % _BLOCK == 0
    dims: tuple[int, ...] = (-(-math.prod(shape) // _BLOCK),)
    if rows_are_blocks:
        dims = (*shape[:-1], shape[-1] // _BLOCK)
    numbers = jnp.stack(_philox((_block_numbers(dims), zero, high0, high1), (key0, key1)), axis=-1)
    if rows_are_blocks:
        bits = numbers.reshape(tuple(shape))
    else:
        bits = numbers.reshape(-1)[: math.prod(shape)].reshape(tuple(shape))
    # Random bits as the mantissa of a float in [1, 2).
    floats = lax.bitcast_convert_type((bits & _MANTISSA) | jnp.uint32(_ONE), jnp.float32)
    return floats - 1.0


def _block_numbers(dims: tuple[int, ...]) -> jax.Array:
    """Returns uint32 of a shape, counted row-major."""
    return sum(
        lax.broadcasted_iota(jnp.uint32, dims, dim) * jnp.uint32(math.prod(dims[dim + 1 :]))
        for dim in range(len(dims))
    )


def _philox(counter: Four, key: Two) -> Four:
    def next_round(_: jax.Array, state: tuple[Four, Two]) -> tuple[Four, Two]:
        (c0, c1, c2, c3), (k0, k1) = state
        high0, low0 = _product(_MULTIPLIERS[0], c0)
        high1, low1 = _product(_MULTIPLIERS[1], c2)
        next_counter = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        return next_counter, (k0 + jnp.uint32(_WEYL[0]), k1 + jnp.uint32(_WEYL[1]))

    # A loop: if written out, XLA's CPU compiler puts the rounds in one fusion that computes each again for every use.
    start = tuple(jnp.broadcast_arrays(*counter)), tuple(map(jnp.asarray, key))
    numbers: Four = lax.fori_loop(0, _ROUNDS, next_round, start)[0]
    return numbers


def _product(constant: int, x: jax.Array) -> Two:
    """Returns the high and the low 32 bits of a product, by halves. JAX has no 64-bit numbers by default."""
    constant_high = jnp.uint32(constant >> 16)
    constant_low = jnp.uint32(constant & 0xFFFF)
    x_high = x >> 16
    x_low = x & 0xFFFF
    middle = constant_high * x_low + ((constant_low * x_low) >> 16)
    rest = constant_low * x_high + (middle & 0xFFFF)
    return constant_high * x_high + (middle >> 16) + (rest >> 16), jnp.uint32(constant) * x
