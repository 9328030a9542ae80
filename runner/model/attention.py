"""Causal attention within documents, and rotary positions (RoPE), for both Keras flavors.

Legend of the shape suffixes: B batch, T tokens, S tokens attended to, H heads, G key/value heads, K head width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.model.portable import Tensor

# Added to the score of a token that may not be attended to: its weight is then exactly 0 in float32.
_MASKED_SCORE = -1e9


def rotation(tokens: int, size: int, base: float) -> tuple[Array, Array]:
    """Returns cosines and sines of rotary positions, float32 (T, 1, K): Su et al., RoFormer (arXiv:2104.09864).

    Element i is rotated together with element i + K / 2, as in Llama.
    """
    frequencies = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    angles = np.outer(np.arange(tokens), np.concatenate([frequencies, frequencies]))[:, None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(ops: Any, x_bthk: Tensor, cosines_and_sines: tuple[Array, Array], *, on_jax: bool) -> Tensor:
    """Returns x rotated by its position, never computed in bfloat16.

    The pair (a, b) becomes (a cos - b sin, b cos + a sin).
    """
    x = x_bthk
    if "bfloat16" in str(x_bthk.dtype):
        # Angles of late positions need more than the 8 bits of a bfloat16 mantissa.
        x = ops.cast(x_bthk, "float32")
    cosines, sines = cosines_and_sines
    cosine = _constant(ops, cosines, x)
    sine = _constant(ops, sines, x)
    half = int(x.shape[-1]) // 2
    # `partner` is (-b, a).
    if on_jax:
        a = x[..., :half]
        b = x[..., half:]
        partner = ops.concatenate([-b, a], axis=-1)
    else:
        # A product with a signed permutation: DTensor can't concatenate along a dim that may be sharded.
        partner = ops.einsum("bthk,kj->bthj", x, _constant(ops, _swap_matrix(half), x))
    return ops.cast(x * cosine + partner * sine, x_bthk.dtype)


def _swap_matrix(half: int) -> Array:
    matrix = np.zeros((2 * half, 2 * half), np.float32)
    index = np.arange(half)
    matrix[index + half, index] = -1.0
    matrix[index, index + half] = 1.0
    return matrix


def _constant(ops: Any, value: Array, like: Tensor) -> Tensor:
    return ops.cast(ops.convert_to_tensor(value), like.dtype)


def attend(
    ops: Any, q_bthk: Tensor, k_bsgk: Tensor, v_bsgk: Tensor, segments_bt: Tensor | None, *, on_jax: bool
) -> Tensor:
    """Returns softmax(q k^T / sqrt(K)) v, (B, T, H, K).

    Each token attends to itself and to the earlier ones of its document; without segments, a row is one document.
    """
    if not on_jax:
        return _attend_dtensor(ops, q_bthk, k_bsgk, v_bsgk, segments_bt)
    mask = None
    if segments_bt is not None:
        same_document_bts = ops.equal(ops.expand_dims(segments_bt, 2), ops.expand_dims(segments_bt, 1))
        mask = ops.expand_dims(same_document_bts, 1)
    return ops.dot_product_attention(q_bthk, k_bsgk, v_bsgk, mask=mask, is_causal=True)


def _attend_dtensor(ops: Any, q_bthk: Tensor, k_bsgk: Tensor, v_bsgk: Tensor, segments_bt: Tensor | None) -> Tensor:
    """Returns (B, T, H, K) by operations that DTensor can shard."""
    tokens = int(q_bthk.shape[1])
    k = k_bsgk
    v = v_bsgk
    heads = int(q_bthk.shape[2])
    groups = int(k.shape[2])
    if heads != groups:
        k = _repeated(ops, k, heads // groups)
        v = _repeated(ops, v, heads // groups)
    scale = 1.0 / math.sqrt(int(q_bthk.shape[-1]))
    scores = ops.einsum("bqhk,bshk->bhqs", q_bthk * scale, k)
    unseen_tokens = np.triu(np.full((tokens, tokens), _MASKED_SCORE, np.float32), 1)
    scores = scores + _constant(ops, unseen_tokens, scores)
    if segments_bt is not None:
        other_document = ops.not_equal(ops.expand_dims(segments_bt, 2), ops.expand_dims(segments_bt, 1))
        scores = scores + ops.expand_dims(ops.cast(other_document, scores.dtype) * _MASKED_SCORE, 1)
    return ops.einsum("bhqs,bshk->bqhk", ops.softmax(scores), v)


def _repeated(ops: Any, x_bsgk: Tensor, times: int) -> Tensor:
    """Returns (B, S, G * times, K), with consecutive copies of each head."""
    _, tokens, groups, size = x_bsgk.shape
    x = ops.tile(ops.expand_dims(x_bsgk, 3), (1, 1, 1, times, 1))
    return ops.reshape(x, (-1, tokens, groups * times, size))
