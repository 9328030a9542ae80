"""Embedding lookups in bfloat16 whose gradients are added up in float32.

The gradients of a token are added to its row one by one. In bfloat16 such a sum stops at 256 for equal terms, so that
a frequent token learns next to nothing: of 4,096 ones, 256 are left. Keras's embeddings ask for their table in
float32, yet a model around them casts it (docs/bugs.md, 11), and with `engine.state=master` or `bfloat16` there is no
float32 table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import keras

from runner.engine.jax import private

_HALF_PRECISION = (jnp.bfloat16, jnp.float16)


@contextmanager
def exact_row_gradients() -> Iterator[None]:
    """Makes `keras.ops.take` add up gradients of rows in float32 in the context. Values stay the same."""

    def replaced(stock_take: private.ArrayFunction) -> private.ArrayFunction:
        def take(x: object, indices: object, axis: int | None = None) -> jax.Array:
            table = keras.ops.convert_to_tensor(x)
            if axis is None or table.dtype not in _HALF_PRECISION:
                return stock_take(table, indices, axis=axis)
            return _taken(axis, table.shape, table.dtype.name, table, keras.ops.convert_to_tensor(indices))

        return take

    with private.take_replaced(replaced):
        yield


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _taken(axis: int, shape: tuple[int, ...], dtype: str, table: jax.Array, indices: jax.Array) -> jax.Array:
    """Returns `jnp.take`. The table's shape and dtype are arguments because the gradient keeps the indices alone."""
    del shape, dtype
    return jnp.take(table, indices, axis=axis)


def _forward(
    axis: int, shape: tuple[int, ...], dtype: str, table: jax.Array, indices: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _taken(axis, shape, dtype, table, indices), indices


def _backward(
    axis: int, shape: tuple[int, ...], dtype: str, indices: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, None]:
    # The transpose of a lookup adds each gradient to its row, in the dtype of the table: in float32 here. The table's
    # values don't matter, as a lookup is linear in them.
    table = jax.ShapeDtypeStruct(shape, jnp.float32)
    add_to_rows = jax.linear_transpose(lambda x: jnp.take(x, indices, axis=axis), table)
    (of_table,) = add_to_rows(gradient.astype(jnp.float32))
    # Rounded once, after all gradients of a row are added.
    return of_table.astype(dtype), None


_taken.defvjp(_forward, _backward)
