"""Gradients of convolution kernels and of embeddings that are right on every mesh and in bfloat16.

If a mesh axis splits neither the images' batch nor their height and width, devices hold copies of them. For images
that are split by height or width, and for groups of channels as in depthwise convolutions, XLA (as of jaxlib 0.10)
then counts every copy in the gradient of a convolution's kernel, with both of its partitioners and without an error
(docs/bugs.md, 4). Here that gradient alone is computed from images and gradients of which there are no copies.

The gradients of a token are added to its row one by one. In bfloat16 such a sum stops at 256 for equal terms, so that
a frequent token learns next to nothing: of 4,096 ones, 256 are left. Keras's embeddings ask for their table in
float32, yet a model around them casts it (docs/bugs.md, 11), and with `engine.state=master` or `bfloat16` there is no
float32 table. Here they are added up in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runner.engine.jax import private
from runner.layout.axes import axes_of

# (array, its batch dim) -> the same array, sharded so that each device holds a part of its own, or each holds all.
Spread = Callable[[jax.Array, int], jax.Array]
_HALF_PRECISION = (jnp.bfloat16, jnp.float16)


def unused_axes(axes: Mapping[str, int], image: Sequence[str | None]) -> list[str]:
    """Returns the mesh axes that split devices but no dim of the images."""
    used = axes_of([image])
    return [axis for axis, size in axes.items() if size > 1 and axis not in used]


def spread_over(mesh: Mesh) -> Spread:
    """Returns a function that splits a batch over all devices of a mesh, or replicates it if they don't divide it."""

    def spread(array: jax.Array, dim: int) -> jax.Array:
        spec = PartitionSpec()
        if array.shape[dim] % mesh.size == 0:
            spec = PartitionSpec(*[None] * dim, mesh.axis_names)
        return lax.with_sharding_constraint(array, NamedSharding(mesh, spec))

    return spread


@contextmanager
def exact_gradients(spread: Spread | None) -> Iterator[None]:
    """Computes both gradients exactly of what is traced inside; without a spread those of embeddings alone.

    JAX's own rule computes the gradients of convolutions; its inputs are spread before.
    """

    def prepare(
        images: jax.Array, gradient: jax.Array, numbers: lax.ConvDimensionNumbers
    ) -> tuple[jax.Array, jax.Array]:
        assert spread is not None
        return spread(images, numbers.lhs_spec[0]), spread(gradient, numbers.out_spec[0])

    with exact_row_gradients():
        if spread is None:
            yield
            return
        with private.kernel_gradients_of(prepare):
            yield


def exact_row_gradients() -> AbstractContextManager[None]:
    """Makes `keras.ops.take` add up gradients of rows in float32 in the context; values stay the same."""

    def replaced(stock_take: private.ArrayFunction) -> private.ArrayFunction:
        def take(x: object, indices: object, axis: int | None = None) -> jax.Array:
            table = keras.ops.convert_to_tensor(x)
            if axis is None or table.dtype not in _HALF_PRECISION:
                return stock_take(table, indices, axis=axis)
            return _taken(axis, table.shape, table.dtype.name, table, keras.ops.convert_to_tensor(indices))

        return take

    return private.take_replaced(replaced)


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
