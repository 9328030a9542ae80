"""The losses of tokens whose logits are `hidden @ head`, in chunks of them: no more than a chunk's logits are held.

The gradients are computed beside the losses, from the logits that are there: they are linear in the factor that comes
back, so that no logits are computed twice (Hsu et al., Liger Kernel, arXiv:2410.10989). Each part of the mesh that has
tokens of its own sums its own gradient of the head, and the parts' are added once, behind the last chunk.

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

from runner.task import token_losses
from runner.task.namespace import Namespace

# Of one device's part of a chunk's logits, in float32. On two cores a chunk that the cache holds takes a third of the
# time of the whole: 214 ms for 588, of 2,048 tokens of 128 features and 8,192 logits each.
MOST_BYTES = {"cpu": 1 << 23}
_MOST_BYTES = 1 << 28  # of other devices
_LEAST = 1e-30  # of the largest weight, that a factor is told of
_PROPORTIONAL = 1e-4  # share by which factors may differ that are one up to rounding

Pair = tuple[jax.Array, jax.Array]
Held = Callable[[jax.Array, int], jax.Array]


@dataclass(frozen=True)
class TokenParts:
    """How a mesh splits tokens.

    Attributes:
      examples: in how many parts, along the examples.
      sequence: likewise along an example's tokens.
      vocabulary: in how many parts it splits each token's logits.
      held: holds an array to have its dims `at` and `at + 1`, of those sizes, on the axes that split the tokens.
    """

    examples: int
    sequence: int
    held: Held
    vocabulary: int = 1


WHOLE = TokenParts(1, 1, lambda array, _: array)


def chunked(
    ops: Namespace,
    parts: TokenParts,
    hidden: jax.Array,
    head: jax.Array,
    bias: jax.Array | None,
    label: jax.Array,
    weight: jax.Array,
    most_bytes: int | None = None,
) -> Pair:
    """Returns what `token_losses.linear` does.

    Its gradients are right where what comes back for a token's nats is one factor times the token's weight, as of a
    weighted sum; for anything else they are NaN.

    Args:
      ops: of JAX.
      parts: of the mesh.
      hidden: (B, T, D).
      head: (D, V).
      bias: (V,); None: none.
      label: int32 (B, T).
      weight: float32 (B, T), 0 of what counts for nothing.
      most_bytes: of a chunk's logits on one device; null: as `MOST_BYTES` has it of the devices.
    """
    (examples, tokens, features), vocabulary = hidden.shape, head.shape[-1]
    p = parts.examples
    s = parts.sequence
    most = most_bytes or MOST_BYTES.get(jax.default_backend(), _MOST_BYTES)
    chunks = chunk_count(parts, examples, tokens, vocabulary, most)
    if chunks == 1 and p * s > 1:  # the check of the factors below communicates
        logits = _wide_product(hidden, head.astype(hidden.dtype))
        return token_losses.of_logits(ops, logits if bias is None else logits + bias.astype(logits.dtype), label)

    def cut(x_bt: jax.Array) -> jax.Array:
        """Returns (C, P, S, N, ...): a chunk takes every C-th token, so that no part gives tokens to another."""
        rest = x_bt.shape[2:]
        x = x_bt.reshape(p, examples // p, s, tokens // s // chunks, chunks, *rest)
        x = jnp.transpose(x, (4, 0, 2, 1, 3, *range(5, x.ndim)))
        return parts.held(x.reshape(chunks, p, s, -1, *rest), 1)

    def joined(x_cpsn: jax.Array) -> jax.Array:
        x = x_cpsn.reshape(chunks, p, s, examples // p, tokens // s // chunks)
        return jnp.transpose(x, (1, 3, 2, 4, 0)).reshape(examples, tokens)

    head_ps = parts.held(jnp.broadcast_to(head.astype(hidden.dtype), (p, s, features, vocabulary)), 0)
    bias_v = jnp.zeros(vocabulary, jnp.float32) if bias is None else bias.astype(jnp.float32)
    bias_ps = parts.held(jnp.broadcast_to(bias_v, (p, s, vocabulary)), 0)
    nats, right = _losses(ops, cut(hidden), head_ps, bias_ps, cut(label), cut(lax.stop_gradient(weight)))
    return joined(nats), joined(lax.stop_gradient(right))


@jax.custom_vjp  # type: ignore[untyped-decorator]
def _wide_product(x: jax.Array, head: jax.Array) -> jax.Array:
    """Returns `x @ head` in float32 at least, as the sums are; gradients are of the operands' own type."""
    return jnp.matmul(x, head, preferred_element_type=jnp.promote_types(x.dtype, jnp.float32))


def _wide_forward(x: jax.Array, head: jax.Array) -> tuple[jax.Array, Pair]:
    return _wide_product(x, head), (x, head)


def _wide_backward(read: Pair, gradient: jax.Array) -> Pair:
    _, back = jax.vjp(jnp.matmul, *read)
    of_x, of_head = back(gradient.astype(read[0].dtype))
    return of_x, of_head


_wide_product.defvjp(_wide_forward, _wide_backward)


def chunk_count(parts: TokenParts, examples: int, tokens: int, vocabulary: int, most_bytes: int) -> int:
    """Returns the least number of equal parts of a row's tokens with logits of at most so many bytes on a device.

    A mesh of more devices takes a larger batch in as many chunks, each of which costs the collectives of a product
    with the head.

    Args:
      parts: of the mesh.
      examples: of all devices, in a micro-batch.
      tokens: of a row.
      vocabulary: logits of a token.
      most_bytes: of the logits of a chunk, float32, on a device.
    """
    own = tokens // parts.sequence
    size = 4 * (examples // parts.examples) * own * -(-vocabulary // parts.vocabulary)
    return next((n for n in range(1, own + 1) if own % n == 0 and size <= n * most_bytes), own)


def _logits(x: jax.Array, head: jax.Array, bias: jax.Array) -> jax.Array:
    kept = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.einsum("psnd,psdv->psnv", x, head, preferred_element_type=kept) + bias[:, :, None, :].astype(kept)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _losses(
    ops: Namespace, x: jax.Array, head: jax.Array, bias: jax.Array, label: jax.Array, weight: jax.Array
) -> Pair:
    """Returns nats and hits (C, P, S, N), of tokens (C, P, S, N, D)."""
    del weight

    def body(_: None, given: Pair) -> tuple[None, Pair]:
        return None, token_losses.of_logits(ops, _logits(given[0], head, bias), given[1])

    found: Pair = lax.scan(body, None, (x, label))[1]
    return found


def _forward(
    ops: Namespace, x: jax.Array, head: jax.Array, bias: jax.Array, label: jax.Array, weight: jax.Array
) -> tuple[Pair, tuple[jax.Array, ...]]:
    kept = jnp.promote_types(x.dtype, jnp.float32)
    number = jnp.arange(head.shape[-1], dtype=label.dtype)

    def body(sums: Pair, given: tuple[jax.Array, ...]) -> tuple[Pair, tuple[jax.Array, ...]]:
        x, label, weight = given
        logits = _logits(x, head, bias)
        nats, right = token_losses.of_logits(ops, logits, label)
        is_label = label[..., None] == number
        own = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
        # exp(logit - logsumexp), of what the losses have: the label's logit is -nats behind the logsumexp.
        slope = (jnp.exp(logits - (own + nats)[..., None]) - is_label) * weight[..., None].astype(kept)
        slope = slope.astype(x.dtype)
        of_x = jnp.einsum("psnv,psdv->psnd", slope, head, preferred_element_type=kept).astype(x.dtype)
        of_head = jnp.einsum("psnd,psnv->psdv", x, slope, preferred_element_type=kept)
        of_bias = jnp.sum(slope, axis=2, dtype=kept)
        return (sums[0] + of_head, sums[1] + of_bias), (nats, right, of_x)

    begun = jnp.zeros_like(head, kept), jnp.zeros_like(bias, kept)
    (of_head, of_bias), (nats, right, of_x) = lax.scan(body, begun, (x, label, weight))
    return (nats, right), (of_x, of_head.astype(head.dtype), of_bias.astype(bias.dtype), weight)


def _backward(ops: Namespace, kept: tuple[jax.Array, ...], factors: Pair) -> tuple[jax.Array | None, ...]:
    del ops
    of_x, of_head, of_bias, weight = kept
    # 0 of padding; an example's own may be negative. The factor of a tiny one may be 0 in float32.
    counts = jnp.abs(weight) > _LEAST * jnp.max(jnp.abs(weight))
    ratio = factors[0] / jnp.where(counts, weight, 1)
    high = jnp.max(jnp.where(counts, ratio, -jnp.inf))
    low = jnp.min(jnp.where(counts, ratio, jnp.inf))
    factor = jnp.where(high - low <= _PROPORTIONAL * jnp.abs(high), high, jnp.nan)
    factor = jnp.where(high < low, 0.0, factor)  # no token counts
    of_x, of_head, of_bias = ((each * factor).astype(each.dtype) for each in (of_x, of_head, of_bias))
    return of_x, of_head, of_bias, None, None


_losses.defvjp(_forward, _backward)
