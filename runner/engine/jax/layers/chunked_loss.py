"""Losses of tokens whose logits are `hidden @ head`, with the logits of one chunk at a time in memory.

The gradients are computed with the losses, from the same logits: they are linear in the factor that the backward pass
brings, so that no logits are computed twice (Hsu et al., Liger Kernel, arXiv:2410.10989). Each part of the mesh that
has tokens of its own sums its own gradient of the head, and the parts' gradients are added once, after the last chunk.

Shapes: B examples, T tokens each, D features, V tokens of the vocabulary; C chunks, P parts of the mesh along the
examples and S along the tokens, N tokens of a part's chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from runner import arrays
from runner.arrays import Arrays

# Bytes of one device's part of a chunk's float32 logits, by JAX's platform. On two cores, a chunk that fits the cache
# takes a third of the time of the whole: 214 ms for 588, with 2,048 tokens of 128 features and 8,192 logits each.
MOST_BYTES = {"cpu": 1 << 23}
# Of other devices, a choice: small next to an accelerator's memory, and a product large enough to keep it busy.
_MOST_BYTES = 1 << 28
# Tokens whose weight is below this share of the largest say nothing of the factor: theirs may be 0 in float32.
_LEAST = 1e-30
# Share by which tokens' factors may differ by rounding, and are still one factor.
_PROPORTIONAL = 1e-4

# Nats and hits of tokens.
Pair = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class TokenParts:
    """How a mesh splits tokens: the number of parts along examples, along an example's tokens, and of a token's
    logits.

    `constrain` returns an array with its dims `dim` and `dim + 1`, of the first two sizes, sharded over the axes that
    split the tokens.
    """

    examples: int
    sequence: int
    constrain: Callable[[jax.Array, int], jax.Array]
    vocabulary: int = 1


# Tokens that no mesh splits.
WHOLE = TokenParts(1, 1, lambda array, _: array)


def bytes_of_chunk(kind: str) -> int:
    """Returns the bytes of a chunk's logits on one device of a kind: `cpu`, `gpu` or `tpu`."""
    return MOST_BYTES.get(kind, _MOST_BYTES)


def chunked(
    ops: Arrays,
    parts: TokenParts,
    hidden: jax.Array,
    head: jax.Array,
    label: jax.Array,
    weight: jax.Array,
    most_bytes: int,
) -> Pair:
    """Returns what `Arrays.head_losses` does: each token's nats and hits, float32 (B, T).

    Its gradients are right if the factor that the backward pass brings for each token's nats is one number times the
    token's weight, as for a weighted sum; for anything else they are NaN.

    Args:
      hidden: (B, T, D).
      head: (D, V).
      label: int32 (B, T).
      weight: float32 (B, T), 0 for tokens that count for nothing.
      most_bytes: of a chunk's logits on one device.
    """
    examples, tokens, features = hidden.shape
    vocabulary = head.shape[-1]
    p = parts.examples
    s = parts.sequence
    chunks = chunk_count(parts, examples, tokens, vocabulary, most_bytes)
    if chunks == 1 and p * s > 1:
        # The check of the factors in `_backward` communicates, which nothing else would here.
        logits = _wide_product(hidden, head.astype(hidden.dtype))
        return arrays.token_losses(ops, logits, label)

    def cut(x_bt: jax.Array) -> jax.Array:
        """Returns (C, P, S, N, ...). A chunk takes every C-th token, so that no part gives tokens to another."""
        rest = x_bt.shape[2:]
        x = x_bt.reshape(p, examples // p, s, tokens // s // chunks, chunks, *rest)
        x = jnp.transpose(x, (4, 0, 2, 1, 3, *range(5, x.ndim)))
        return parts.constrain(x.reshape(chunks, p, s, -1, *rest), 1)

    def joined(x_cpsn: jax.Array) -> jax.Array:
        """Returns (B, T), the inverse of `cut`."""
        x = x_cpsn.reshape(chunks, p, s, examples // p, tokens // s // chunks)
        return jnp.transpose(x, (1, 3, 2, 4, 0)).reshape(examples, tokens)

    # A copy per part, so that each sums a gradient of its own.
    head_psdv = parts.constrain(jnp.broadcast_to(head.astype(hidden.dtype), (p, s, features, vocabulary)), 0)
    nats, hits = _losses(ops, cut(hidden), head_psdv, cut(label), cut(lax.stop_gradient(weight)))
    return joined(nats), joined(lax.stop_gradient(hits))


@jax.custom_vjp  # type: ignore[untyped-decorator]
def _wide_product(x: jax.Array, head: jax.Array) -> jax.Array:
    """Returns `x @ head` in float32 at least, as its sums are. Gradients have the operands' own dtype."""
    return jnp.matmul(x, head, preferred_element_type=jnp.promote_types(x.dtype, jnp.float32))


def _wide_forward(x: jax.Array, head: jax.Array) -> tuple[jax.Array, Pair]:
    return _wide_product(x, head), (x, head)


def _wide_backward(residuals: Pair, gradient: jax.Array) -> Pair:
    x, _ = residuals
    _, back = jax.vjp(jnp.matmul, *residuals)
    of_x, of_head = back(gradient.astype(x.dtype))
    return of_x, of_head


_wide_product.defvjp(_wide_forward, _wide_backward)


def chunk_count(parts: TokenParts, examples: int, tokens: int, vocabulary: int, most_bytes: int) -> int:
    """Returns the least number of equal chunks of a row's tokens whose float32 logits are within the bytes per device.

    A mesh of more devices computes a larger batch in as many chunks, each of which costs the collectives of a product
    with the head.
    """
    own_tokens = tokens // parts.sequence
    # Rounded up: the vocabulary need not be divisible by its axis.
    own_vocabulary = -(-vocabulary // parts.vocabulary)
    logits_bytes = 4 * (examples // parts.examples) * own_tokens * own_vocabulary
    for chunks in range(1, own_tokens + 1):
        if own_tokens % chunks == 0 and logits_bytes <= chunks * most_bytes:
            return chunks
    return own_tokens


def _logits(x_psnd: jax.Array, head_psdv: jax.Array) -> jax.Array:
    """Returns (P, S, N, V), in float32 at least."""
    dtype = jnp.promote_types(x_psnd.dtype, jnp.float32)
    return jnp.einsum("psnd,psdv->psnv", x_psnd, head_psdv, preferred_element_type=dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _losses(ops: Arrays, x: jax.Array, head: jax.Array, label: jax.Array, weight: jax.Array) -> Pair:
    """Returns nats and hits (C, P, S, N), of tokens (C, P, S, N, D)."""
    del weight

    def body(_: None, chunk: Pair) -> tuple[None, Pair]:
        x_psnd, label_psn = chunk
        return None, arrays.token_losses(ops, _logits(x_psnd, head), label_psn)

    _, nats_and_hits = lax.scan(body, None, (x, label))
    result: Pair = nats_and_hits
    return result


def _forward(
    ops: Arrays, x: jax.Array, head: jax.Array, label: jax.Array, weight: jax.Array
) -> tuple[Pair, tuple[jax.Array, ...]]:
    """Returns `_losses`, and for the backward pass the gradients for a factor of 1, with the weights."""
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    token_numbers_v = jnp.arange(head.shape[-1], dtype=label.dtype)

    def body(sums: jax.Array, chunk: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        x, label, weight = chunk
        logits = _logits(x, head)
        nats, hits = arrays.token_losses(ops, logits, label)
        is_label = label[..., None] == token_numbers_v
        label_logit = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
        # softmax(logits) - is_label. The softmax is exp(logit - logsumexp), and the losses have the logsumexp already:
        # nats = logsumexp - the label's logit.
        slope = (jnp.exp(logits - (label_logit + nats)[..., None]) - is_label) * weight[..., None].astype(dtype)
        slope = slope.astype(x.dtype)
        of_x = jnp.einsum("psnv,psdv->psnd", slope, head, preferred_element_type=dtype).astype(x.dtype)
        of_head = jnp.einsum("psnd,psnv->psdv", x, slope, preferred_element_type=dtype)
        return sums + of_head, (nats, hits, of_x)

    of_head, (nats, hits, of_x) = lax.scan(body, jnp.zeros_like(head, dtype), (x, label, weight))
    return (nats, hits), (of_x, of_head.astype(head.dtype), weight)


def _backward(ops: Arrays, residuals: tuple[jax.Array, ...], gradients: Pair) -> tuple[jax.Array | None, ...]:
    """Returns the gradients times the factor of all tokens. They are NaN if there is no such factor."""
    del ops
    of_x, of_head, weight = residuals
    of_nats, _ = gradients
    # 0 for padding; an example's own weight may be negative.
    counts = jnp.abs(weight) > _LEAST * jnp.max(jnp.abs(weight))
    ratio = of_nats / jnp.where(counts, weight, 1)
    high = jnp.max(jnp.where(counts, ratio, -jnp.inf))
    low = jnp.min(jnp.where(counts, ratio, jnp.inf))
    factor = jnp.where(high - low <= _PROPORTIONAL * jnp.abs(high), high, jnp.nan)
    # If no token counts, high is -inf and low is inf.
    factor = jnp.where(high < low, 0.0, factor)
    of_x, of_head = ((array * factor).astype(array.dtype) for array in (of_x, of_head))
    return of_x, of_head, None, None


_losses.defvjp(_forward, _backward)
