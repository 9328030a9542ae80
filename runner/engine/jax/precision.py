"""What type a state's arrays have, by `engine.state`: weights and slots in float32, in bfloat16, or float32 masters.

- `float32`: all of it; layers that compute in bfloat16 round what they read, as under Keras's policy `mixed_bfloat16`.
- `master`: trained weights and slots are float32, and the model sees copies of the weights in bfloat16, made again
  each step where the weights lie, before anything is gathered (Micikevicius et al., Mixed Precision Training,
  arXiv:1710.03740). A copy is a function of its weight, so no state holds it.
- `bfloat16`: weights and slots, as under Keras's policy `bfloat16`. An update computes in float32 and rounds once.

Weights that are frozen need no master: with both they are held in bfloat16. What is no weight, as moving statistics,
is float32 in all three, and so are averages of weights and sums of gradients: small changes to them would round away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from runner.arrays import Tensor
from runner.engine.jax import private

_LOW = "bfloat16"


def hold(model: keras.Model, variables: Mapping[str, keras.Variable], state: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Gives a model's weights the type in which a step uses them.

    Args:
      model: built under a policy with float32 variables.
      variables: its weights by canonical path.
      state: `engine.state`.

    Returns:
      Shapes, and the dtypes in which the variables are held.
    """
    held = {path: jax.ShapeDtypeStruct(tuple(one.shape), one.dtype) for path, one in variables.items()}
    if state == "float32":
        return held
    weights = private.made_trainable(model)
    trained = {id(variable) for variable in model.trainable_variables}
    for path, variable in variables.items():
        if id(variable) in weights:
            private.set_dtype(variable, _LOW)
            if state == _LOW or id(variable) not in trained:
                held[path] = jax.ShapeDtypeStruct(tuple(variable.shape), _LOW)
    return held


def whole(value: Tensor) -> jax.Array:
    """Returns an array in float32, or as it is where it is wider."""
    found: jax.Array = value.astype(at_least_float32(value.dtype))
    return found


def at_least_float32(dtype: Any) -> Any:
    """Returns float32 in place of a narrower floating dtype."""
    return jnp.promote_types(dtype, jnp.float32)


def rounded(value: jax.Array, dtype: Any) -> jax.Array:
    """Returns an array in another floating dtype.

    XLA may leave out two conversions that follow each other, and with them the rounding; this one it may not.
    """
    if value.dtype == dtype:
        return value
    if jnp.dtype(dtype) == jnp.bfloat16:
        value = lax.reduce_precision(value, exponent_bits=8, mantissa_bits=7)
    return value.astype(dtype)
