"""Use of cuDNN's fused attention on GPUs, unless a mesh splits queries, keys and values differently."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
from jax.sharding import NamedSharding, PartitionSpec

from runner.engine.jax import private

# Bytes of a number that cuDNN's kernel takes.
_HALF_PRECISION_BYTES = 2


@contextmanager
def fused_where_alike(
    examples: NamedSharding, *, splits_tokens: bool, heads_axis: str | None = None
) -> Iterator[None]:
    """Keeps `keras.ops.dot_product_attention` in the context from cuDNN's kernel if a mesh can't split it.

    In 16 bits Keras uses that kernel on GPUs by itself. JAX splits it by examples and by heads, and queries, keys and
    values alike; it rejects anything else while XLA compiles ("Query, key and value should have same sharding"), too
    late for another form of attention. XLA may choose different shardings for the three if kernels are sharded twice,
    as by fsdp_megatron: in 16 bits they are therefore constrained to one. A call that passes `flash_attention` itself
    keeps its value.
    """
    batch_axes = _axes(examples)
    other_sizes = []
    for axis, size in examples.mesh.shape.items():
        if size > 1 and axis not in batch_axes:
            other_sizes.append(size)

    def replaced(stock_attention: private.ArrayFunction) -> private.ArrayFunction:
        def attention(query: jax.Array, key: jax.Array, value: jax.Array, **options: object) -> jax.Array:
            can_fuse = not splits_tokens and divide_heads(other_sizes, head_counts((query, key)))
            if not can_fuse and options.get("flash_attention") is None:
                options["flash_attention"] = False
            if can_fuse and options.get("flash_attention") is not False:
                query, key, value = _with_one_sharding(examples, heads_axis, (query, key, value))
            return stock_attention(query, key, value, **options)

        return attention

    with private.attention_replaced(replaced):
        yield


def head_counts(arrays: Sequence[jax.Array]) -> tuple[int, ...]:
    """Returns the number of heads of each array (B, T, H, K); arrays of other dims have none."""
    return tuple(array.shape[2] for array in arrays if len(array.shape) == 4)


def divide_heads(sizes: Sequence[int], heads: Sequence[int]) -> bool:
    """Returns whether each size divides each number of heads."""
    return all(count % size == 0 for size in sizes for count in heads)


def _axes(examples: NamedSharding) -> tuple[str, ...]:
    entry = examples.spec[0] if examples.spec else None
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def _with_one_sharding(
    examples: NamedSharding, heads_axis: str | None, arrays: Sequence[jax.Array]
) -> Sequence[jax.Array]:
    """Returns queries, keys and values (B, T, H, K) sharded by examples, and by heads over an axis.

    They are returned as they are if cuDNN's kernel does not take them: with more than 16 bits, or other dims.
    """
    mesh = examples.mesh
    batch_axes = _axes(examples)
    example_parts = math.prod(mesh.shape[axis] for axis in batch_axes)
    for array in arrays:
        is_half_precision = getattr(array, "ndim", 0) == 4 and array.dtype.itemsize == _HALF_PRECISION_BYTES
        if not is_half_precision or array.shape[0] % example_parts:
            return arrays
    if mesh.size == 1:
        return arrays
    if heads_axis is not None and not divide_heads([mesh.shape[heads_axis]], head_counts(arrays)):
        # Heads that the axis does not divide stay replicated.
        heads_axis = None
    sharding = NamedSharding(mesh, PartitionSpec(batch_axes or None, None, heads_axis, None))
    return [jax.lax.with_sharding_constraint(array, sharding) for array in arrays]
