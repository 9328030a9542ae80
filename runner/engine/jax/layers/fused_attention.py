"""The fused attention that JAX has on GPUs, left out where a mesh splits what cuDNN wants split alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import NamedSharding

from runner.engine.jax import private


@contextmanager
def fused_where_alike(examples: NamedSharding, *, splits_tokens: bool) -> Iterator[None]:
    """Keeps `keras.ops.dot_product_attention` from cuDNN's kernel where it can't be split, while the context lasts.

    In 16 bits Keras takes that kernel on GPUs by itself. JAX splits it by examples and by heads, and queries, keys and
    values alike; anything else it refuses while XLA compiles, where nobody could go on without. A call that says
    `flash_attention` itself is left as it is.

    Args:
      examples: how a batch's examples lie; the mesh's other axes may split heads.
      splits_tokens: an axis splits the tokens of an example.
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
            return plain(query, key, value, **told)

        return attention

    with private.attention_replaced(answered):
        yield
