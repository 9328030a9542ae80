"""Causal attention within documents, and rotary positions, by the operations of either Keras.

Shapes: B batch, T tokens, S tokens attended to, H heads, G heads of keys and values, K numbers a head.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.model import scope

Tensor = Any  # of the Keras that a builder was given

_HIDDEN = -1e9  # added to the score of a token that may not be seen; its share is then exactly 0 in float32


def rotation(tokens: int, size: int, wavelength: float) -> tuple[Array, Array]:
    """Returns cosines and sines of rotary positions, float32 (T, 1, K): Su et al., RoFormer (arXiv:2104.09864).

    Number i turns together with number i + K / 2, as in Llama.

    Args:
      tokens: T.
      size: K, even.
      wavelength: of the slowest pair, over two pi.
    """
    speed = wavelength ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    angles = np.outer(np.arange(tokens), np.concatenate([speed, speed]))[:, None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(tensors: Any, x_bthk: Tensor, turn: tuple[Array, Array], *, on_jax: bool) -> Tensor:
    """Returns x turned by its position: the pair (a, b) becomes (a cos - b sin, b cos + a sin), never in bfloat16."""
    x = tensors.cast(x_bthk, "float32") if "bfloat16" in str(x_bthk.dtype) else x_bthk
    cosine, sine = (_constant(tensors, each, x) for each in turn)
    size = int(x.shape[-1])
    if not on_jax:  # a product: DTensor joins nothing along a dim that it may split
        swap = np.zeros((size, size), np.float32)
        half = np.arange(size // 2)
        swap[half + size // 2, half], swap[half, half + size // 2] = -1.0, 1.0
        other = tensors.einsum("bthk,kj->bthj", x, _constant(tensors, swap, x))
    else:
        a = x[..., : size // 2]
        b = x[..., size // 2 :]
        other = tensors.concatenate([-b, a], axis=-1)
    return tensors.cast(x * cosine + other * sine, x_bthk.dtype)


def _constant(tensors: Any, value: Array, like: Tensor) -> Tensor:
    """Returns a host array as a tensor of another one's dtype."""
    return tensors.cast(tensors.convert_to_tensor(value), like.dtype)


def attend(
    tensors: Any, q_bthk: Tensor, k_bsgk: Tensor, v_bsgk: Tensor, segments_bt: Tensor | None, *, on_jax: bool
) -> Tensor:
    """Returns softmax(q k^T / sqrt(K)) v, (B, T, H, K), over each token and those before it in its document.

    Args:
      tensors: the functions of `runner.model.ops`.
      q_bthk: queries.
      k_bsgk: keys; each of the G heads serves H / G heads of queries in a row.
      v_bsgk: values.
      segments_bt: the document of each token; None: all are of one.
      on_jax: by JAX's own attention, else by operations that DTensor splits.
    """
    return (_attend_jax if on_jax else _attend_dtensor)(tensors, q_bthk, k_bsgk, v_bsgk, segments_bt)


def _attend_jax(tensors: Any, q_bthk: Tensor, k_bsgk: Tensor, v_bsgk: Tensor, segments: Tensor) -> Tensor:
    """Returns (B, T, H, K) by JAX's own attention, which has a fused form on GPUs."""
    mask = None
    if segments is not None:
        mask = tensors.equal(tensors.expand_dims(segments, 2), tensors.expand_dims(segments, 1))
        mask = tensors.expand_dims(mask, 1)
    return tensors.dot_product_attention(q_bthk, k_bsgk, v_bsgk, mask=mask, is_causal=True)


def _attend_dtensor(tensors: Any, q_bthk: Tensor, k_bsgk: Tensor, v_bsgk: Tensor, segments: Tensor) -> Tensor:
    """Returns (B, T, H, K) by operations that DTensor splits: a token needs the keys and values of all others."""
    batch = scope.batch_axis()
    tokens = int(q_bthk.shape[1])
    k, v = (scope.lay(each, [batch, None, scope.MATCH, None]) for each in (k_bsgk, v_bsgk))
    heads = int(q_bthk.shape[2])
    groups = int(k.shape[2])
    if heads != groups:
        k, v = (_repeated(tensors, each, heads // groups) for each in (k, v))
    scores = tensors.einsum("bqhk,bshk->bhqs", q_bthk * (1.0 / math.sqrt(int(q_bthk.shape[-1]))), k)
    later = np.triu(np.full((tokens, tokens), _HIDDEN, np.float32), 1)
    scores = scores + _constant(tensors, later, scores)
    if segments is not None:
        whole = scope.lay(segments, [batch, None])
        other = tensors.not_equal(tensors.expand_dims(segments, 2), tensors.expand_dims(whole, 1))
        scores = scores + tensors.expand_dims(tensors.cast(other, scores.dtype) * _HIDDEN, 1)
    return tensors.einsum("bhqs,bshk->bqhk", tensors.softmax(scores), v)


def _repeated(tensors: Any, x_bsgk: Tensor, times: int) -> Tensor:
    """Returns (B, S, G * times, K), each head as often in a row."""
    _, tokens, groups, size = x_bsgk.shape
    x = tensors.tile(tensors.expand_dims(x_bsgk, 3), (1, 1, 1, times, 1))
    return tensors.reshape(x, (-1, tokens, groups * times, size))
