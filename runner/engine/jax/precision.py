"""Dtypes of the state, by `engine.state`: weights and slots in float32 or bfloat16, or float32 master weights.

- `float32`: all of it; layers that compute in bfloat16 round what they read, as under Keras's policy `mixed_bfloat16`.
- `master`: trained weights and slots are float32, and the model uses copies of the weights in bfloat16, made again in
each step by every shard, before anything is gathered (Micikevicius et al., Mixed Precision Training,
arXiv:1710.03740). A copy is a function of its weight, so no state holds it. - `bfloat16`: weights and slots, as under
Keras's policy `bfloat16`. An update computes in float32 and rounds once.

Frozen weights need no master copy: with both they are bfloat16. Variables that are not weights, such as moving
statistics, are float32 in all three, and so are averages of weights and sums of gradients: small changes to them would
round away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from runner.arrays import Tensor
from runner.engine.jax import private
from runner.engine.mappings import map_values

_LOW = "bfloat16"


def kind_of(variable: keras.Variable | jax.Array) -> jax.ShapeDtypeStruct:
    """Returns a variable's or an array's shape and dtype."""
    return jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype)


def set_dtypes(
    model: keras.Model, variables: Mapping[str, keras.Variable], state: str
) -> dict[str, jax.ShapeDtypeStruct]:
    """Gives a model's weights the dtype in which a step uses them; returns the kinds in which the state holds them."""
    kinds = map_values(kind_of, variables)
    if state == "float32":
        return kinds
    weights = private.trainable_ids(model)
    trained = set(map(id, model.trainable_variables))
    for path, variable in variables.items():
        # Statistics, such as those of a batch normalization, stay in float32.
        if id(variable) not in weights:
            continue
        private.set_dtype(variable, _LOW)
        # A frozen weight needs no master copy: no small change is ever added to it.
        if state == _LOW or id(variable) not in trained:
            kinds[path] = jax.ShapeDtypeStruct(tuple(variable.shape), _LOW)
    return kinds


def as_float32(value: Tensor) -> jax.Array:
    """Returns an array in float32, or unchanged if it is wider."""
    converted: jax.Array = value.astype(at_least_float32(value.dtype))
    return converted


def at_least_float32(dtype: DTypeLike) -> np.dtype[Any]:
    """Returns float32 for a narrower floating dtype, else the dtype."""
    return jnp.promote_types(dtype, jnp.float32)


def rounded(value: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Returns an array in another floating dtype.

    XLA may remove two conversions that follow each other, and with them the rounding; it keeps `reduce_precision`.
    """
    if value.dtype == dtype:
        return value
    if jnp.dtype(dtype) == jnp.bfloat16:
        value = lax.reduce_precision(value, exponent_bits=8, mantissa_bits=7)
    return value.astype(dtype)


def rounded_like(value: jax.Array, like: jax.Array) -> jax.Array:
    """Returns an array in the floating dtype of another one, see `rounded`."""
    return rounded(value, like.dtype)
