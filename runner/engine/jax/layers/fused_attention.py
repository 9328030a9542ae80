"""The fused attention that JAX has on GPUs, left out where a mesh splits what cuDNN wants split alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from runner.engine.jax import private

_BYTES = 2  # of a number that cuDNN's kernel takes


@contextmanager
def fused_where_alike(
    examples: NamedSharding, *, splits_tokens: bool, heads_axis: str | None = None
) -> Iterator[None]:
    """Keeps `keras.ops.dot_product_attention` from cuDNN's kernel where it can't be split, while the context lasts.

    In 16 bits Keras takes that kernel on GPUs by itself. JAX splits it by examples and by heads, and queries, keys and
    values alike; anything else it refuses while XLA compiles ("Query, key and value should have same sharding"), where
    nobody could go on without. XLA may choose apart for the three if kernels are split twice, as by fsdp_megatron: in
    16 bits they are therefore held to one sharding. A call that says `flash_attention` itself takes what it says.

    Args:
      examples: how a batch's examples lie; the mesh's other axes may split heads.
      splits_tokens: an axis splits the tokens of an example.
      heads_axis: axis that splits the heads of queries, keys and values; None: they are whole.
    """
    taken = examples.spec[0] if examples.spec else None
    batch = taken if isinstance(taken, tuple) else (taken,)
    others = [size for axis, size in examples.mesh.shape.items() if size > 1 and axis not in batch]

    def answered(plain: private.Function) -> private.Function:
        def attention(query: Any, key: Any, value: Any, **told: Any) -> jax.Array:
            heads = [each.shape[2] for each in (query, key) if len(each.shape) == 4]
            alike = not splits_tokens and all(count % size == 0 for count in heads for size in others)
            if not alike and told.get("flash_attention") is None:
                told["flash_attention"] = False
            if alike and told.get("flash_attention") is not False:
                query, key, value = _as_one(examples, heads_axis, (query, key, value))
            return plain(query, key, value, **told)

        return attention

    with private.attention_replaced(answered):
        yield


def _as_one(examples: NamedSharding, heads_axis: str | None, arrays: Sequence[Any]) -> Sequence[Any]:
    """Returns queries, keys and values (B, T, H, K) in one sharding: by examples, and by heads over an axis.

    They are left as they are where cuDNN's kernel does not take them: of more than 16 bits, or of other dims.
    """
    mesh = examples.mesh
    batch = examples.spec[0] if examples.spec else None
    names = batch if isinstance(batch, tuple) else (batch,)
    parts = math.prod(mesh.shape[name] for name in names if name is not None)
    fits = all(
        getattr(each, "ndim", 0) == 4 and each.dtype.itemsize == _BYTES and each.shape[0] % parts == 0
        for each in arrays
    )
    if not fits or mesh.size == 1:
        return arrays
    axis = heads_axis
    if axis is not None and any(each.shape[2] % mesh.shape[axis] for each in arrays):
        axis = None
    sharding = NamedSharding(mesh, PartitionSpec(batch, None, axis, None))
    return [jax.lax.with_sharding_constraint(each, sharding) for each in arrays]
