"""Causal attention within documents, and rotary positions (RoPE), for both Keras flavors.

Legend of the shape suffixes: B batch, T tokens, S tokens attended to, H heads, G key/value heads, K head width.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.model import scope, windows
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
    ops: Any,
    q_bthk: Tensor,
    k_bsgk: Tensor,
    v_bsgk: Tensor,
    segments_bt: Tensor | None,
    *,
    window: int | None = None,
    cap: float | None = None,
    on_jax: bool,
) -> Tensor:
    """Returns softmax(q k^T / sqrt(K)) v, (B, T, H, K).

    Each token attends to itself and to the earlier ones of its document.

    Args:
      segments_bt: document of each token; None: each row is one document.
      window: the last tokens that a token attends to, itself included; None: all of them.
      cap: soft cap of the scores, see `soft_capped`; None: none. JAX's attention has none, nor do fused kernels, so
        operations of its own compute it.
    """
    if window is not None and window >= int(q_bthk.shape[1]):
        window = None
    if not on_jax:
        return _attend_dtensor(ops, q_bthk, k_bsgk, v_bsgk, segments_bt, window, cap)
    if window is None and cap is None:
        mask = None
        if segments_bt is not None:
            mask = _same_document(ops, segments_bt, segments_bt)
        return ops.dot_product_attention(q_bthk, k_bsgk, v_bsgk, mask=mask, is_causal=True)
    return _attend_masked(ops, q_bthk, k_bsgk, v_bsgk, segments_bt, window, cap)


def soft_capped(ops: Any, x: Tensor, cap: float) -> Tensor:
    """Returns cap * tanh(x / cap), between -cap and cap: Gemma 2 (arXiv:2408.00118)."""
    return cap * ops.tanh(x / cap)


def attend_capped(ops: Any, q_bthk: Tensor, k_bsgk: Tensor, v_bsgk: Tensor, mask_b1ts: Tensor, cap: float) -> Tensor:
    """Returns the attended values (B, T, H, K) by softly capped scores, with Keras on JAX.

    As in JAX's attention, scores and softmax are float32 at least. The mask broadcasts to bool (B, 1, T, S).
    """
    # Imported by name: the DTensor engines may run without JAX.
    jnp = importlib.import_module("jax.numpy")
    examples, tokens, heads, size = q_bthk.shape
    groups = int(k_bsgk.shape[2])
    # Heads of one group are n.
    q_btgnk = ops.reshape(q_bthk, (examples, tokens, groups, heads // groups, size))
    dtype = jnp.promote_types(q_bthk.dtype, jnp.float32)
    scores = jnp.einsum("btgnk,bsgk->bgnts", q_btgnk, k_bsgk, preferred_element_type=dtype)
    scores = soft_capped(ops, scores / math.sqrt(size), cap)
    scores = ops.where(ops.expand_dims(mask_b1ts, 1), scores, _MASKED_SCORE)
    weights = ops.cast(ops.softmax(scores), v_bsgk.dtype)
    attended = ops.einsum("bgnts,bsgk->btgnk", weights, v_bsgk)
    return ops.reshape(attended, (examples, tokens, heads, size))


def _same_document(ops: Any, queries_bt: Tensor, keys_bs: Tensor) -> Tensor:
    """Returns bool (B, 1, T, S) of the documents of queries and keys."""
    same_document_bts = ops.equal(ops.expand_dims(queries_bt, 2), ops.expand_dims(keys_bs, 1))
    return ops.expand_dims(same_document_bts, 1)


def _attend_masked(
    ops: Any,
    q_bthk: Tensor,
    k_bsgk: Tensor,
    v_bsgk: Tensor,
    segments_bt: Tensor | None,
    window: int | None,
    cap: float | None,
) -> Tensor:
    """Returns (B, T, H, K) with Keras on JAX, of a window or with capped scores.

    With a window it is computed chunk by chunk, so that keys outside of all windows are left out. If a mesh splits the
    tokens, a chunk would be on some of the devices only: all keys are compared then.
    """
    tokens = int(q_bthk.shape[1])
    chunks = [windows.Chunk(0, tokens, 0)]
    if window is not None and not scope.tokens_are_split():
        chunks = windows.chunks(tokens, window)
    attended = []
    for start, stop, first_key in chunks:
        query_t1 = ops.expand_dims(ops.arange(start, stop), 1)
        key_1s = ops.expand_dims(ops.arange(first_key, stop), 0)
        is_seen_ts = ops.less_equal(key_1s, query_t1)
        if window is not None:
            is_seen_ts = ops.logical_and(is_seen_ts, ops.greater(key_1s, query_t1 - window))
        mask = ops.expand_dims(is_seen_ts, (0, 1))
        if segments_bt is not None:
            same_document = _same_document(ops, segments_bt[:, start:stop], segments_bt[:, first_key:stop])
            mask = ops.logical_and(mask, same_document)
        q = q_bthk[:, start:stop]
        k = k_bsgk[:, first_key:stop]
        v = v_bsgk[:, first_key:stop]
        if cap is None:
            # With a mask, fused attention of GPUs takes even numbers of queries and of keys.
            is_even = (stop - start) % 2 == 0 and (stop - first_key) % 2 == 0
            flash = None if is_even else False
            attended.append(ops.dot_product_attention(q, k, v, mask=mask, flash_attention=flash))
        else:
            attended.append(attend_capped(ops, q, k, v, mask, cap))
    return ops.concatenate(attended, axis=1)


def _attend_dtensor(
    ops: Any,
    q_bthk: Tensor,
    k_bsgk: Tensor,
    v_bsgk: Tensor,
    segments_bt: Tensor | None,
    window: int | None,
    cap: float | None,
) -> Tensor:
    """Returns (B, T, H, K) by operations that DTensor can shard.

    The tokens may be sharded too. All keys are compared, also those outside of a window.
    """
    batch = scope.batch_axis()
    tokens = int(q_bthk.shape[1])
    # Each query attends to the keys and values of all tokens, so these are gathered; their heads stay sharded.
    k = scope.lay(k_bsgk, [batch, None, scope.MATCH, None])
    v = scope.lay(v_bsgk, [batch, None, scope.MATCH, None])
    heads = int(q_bthk.shape[2])
    groups = int(k.shape[2])
    if heads != groups:
        k = _repeated(ops, k, heads // groups)
        v = _repeated(ops, v, heads // groups)
    scale = 1.0 / math.sqrt(int(q_bthk.shape[-1]))
    scores = ops.einsum("bqhk,bshk->bhqs", q_bthk * scale, k)
    if cap is not None:
        scores = soft_capped(ops, scores, cap)
    unseen_tokens = np.triu(np.full((tokens, tokens), _MASKED_SCORE, np.float32), 1)
    if window is not None:
        unseen_tokens += np.tril(np.full((tokens, tokens), _MASKED_SCORE, np.float32), -window)
    scores = scores + _constant(ops, unseen_tokens, scores)
    if segments_bt is not None:
        gathered_bs = scope.lay(segments_bt, [batch, None])
        other_document = ops.not_equal(ops.expand_dims(segments_bt, 2), ops.expand_dims(gathered_bs, 1))
        scores = scores + ops.expand_dims(ops.cast(other_document, scores.dtype) * _MASKED_SCORE, 1)
    return ops.einsum("bhqs,bshk->bqhk", ops.softmax(scores), v)


def _repeated(ops: Any, x_bsgk: Tensor, times: int) -> Tensor:
    """Returns (B, S, G * times, K), with consecutive copies of each head."""
    _, tokens, groups, size = x_bsgk.shape
    x = ops.tile(ops.expand_dims(x_bsgk, 3), (1, 1, 1, times, 1))
    return ops.reshape(x, (-1, tokens, groups * times, size))
