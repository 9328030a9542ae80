"""Layers of a decoder-only transformer, for tf_keras and Keras 3 alike.

Shapes: B batch, T tokens, S tokens attended to, D dim, H heads, G heads of keys and values, R queries' heads to one of
these, K numbers a head, F hidden units, V vocabulary. Kernels of attention keep their heads as a dim of their own, so
that a rule can split them over a mesh axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.model import ops, scope

Tensor = Any  # of the Keras that a builder was given

_HIDDEN = -1e9  # added to the score of a token that may not be seen; its share is then exactly 0 in float32


@dataclass(frozen=True)
class Sizes:
    """What the blocks of one transformer have in common.

    Attributes:
      dim: width of a token.
      heads: of queries.
      key_value_heads: each serves as many heads of queries.
      feedforward: hidden units.
      depth: blocks; the projections that end a branch begin smaller by the square root of the branches.
      rotary: longest wavelength of rotary positions over two pi; None: positions are none of the blocks' business.
      norm: `layer` or `rms`.
      gated: the hidden units are SiLU(gate) times up, else GELU of up.
      bias: of every projection.
      dropout: share of each branch's output set to zero while training.
      epsilon: of the norms.
    """

    dim: int
    heads: int
    key_value_heads: int
    feedforward: int
    depth: int
    rotary: float | None
    norm: str
    gated: bool
    bias: bool
    dropout: float
    epsilon: float

    @property
    def head(self) -> int:
        """Numbers of one head."""
        return self.dim // self.heads


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


@functools.cache
def layers(keras: ModuleType) -> SimpleNamespace:
    """Returns the layers that Keras has not, as classes of the Keras given: what a builder puts together."""
    tensors, jax = ops.of(keras), hasattr(keras, "ops")
    stock = keras.layers
    base: Any = stock.Layer

    class TokenEmbedding(base):
        """Vectors of tokens, (B, T) whole numbers -> (B, T, D); and the table (V, D) itself, for a tied head."""

        def __init__(self, vocabulary: int, dim: int, *, gives_table: bool = False, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.vocabulary, self.dim, self.gives_table = vocabulary, dim, gives_table

        def build(self, input_shape: Any) -> None:
            """Makes the table."""
            self.embeddings = self.add_weight(
                shape=(self.vocabulary, self.dim), initializer=_normal(keras), name="embeddings"
            )
            super().build(input_shape)

        def call(self, tokens: Tensor) -> Any:
            """Returns the vectors, and the table where it is asked for."""
            table = tensors.convert_to_tensor(self.embeddings)
            if jax:
                table = tensors.cast(table, self.compute_dtype)
            x = tensors.take(table, tokens, axis=0)
            return (x, table) if self.gives_table else x

    class PositionEmbedding(base):
        """Adds a learned vector to each token, by its place in the row."""

        def __init__(self, length: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.length = length

        def build(self, input_shape: Any) -> None:
            """Makes the (length, D) table."""
            shape = (self.length, input_shape[-1])
            self.embeddings = self.add_weight(shape=shape, initializer=_normal(keras), name="embeddings")
            super().build(input_shape)

        def call(self, x_btd: Tensor) -> Tensor:
            """Returns the tokens with their positions added."""
            tokens = int(x_btd.shape[1])
            table = tensors.cast(tensors.convert_to_tensor(self.embeddings), x_btd.dtype)
            return x_btd + (table if tokens == self.length else table[:tokens])

    class RMSNorm(base):
        """x / sqrt(mean(x^2) + epsilon) * scale over the last dim, in float32: arXiv:1910.07467."""

        def __init__(self, epsilon: float, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.epsilon = epsilon

        def build(self, input_shape: Any) -> None:
            """Makes the scale (D,), which begins at 1."""
            self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")
            super().build(input_shape)

        def call(self, x_btd: Tensor) -> Tensor:
            """Returns the tokens, of root mean square 1 before the scale."""
            x = tensors.cast(x_btd, "float32") if self.compute_dtype == "bfloat16" else x_btd
            x = x * tensors.rsqrt(tensors.mean(tensors.square(x), axis=-1, keepdims=True) + self.epsilon)
            return tensors.cast(x * tensors.cast(self.scale, x.dtype), self.compute_dtype)

    def norm(sizes: Sizes, name: str) -> Any:
        return (
            RMSNorm(sizes.epsilon, name=name)
            if sizes.norm == "rms"
            else stock.LayerNormalization(epsilon=sizes.epsilon, name=name)
        )

    def projection(sizes: Sizes, name: str, units: int, scale: float = 1.0) -> Any:
        return stock.Dense(units, use_bias=sizes.bias, kernel_initializer=_normal(keras, scale), name=name)

    def to_heads(sizes: Sizes, name: str, heads: int) -> Any:
        return stock.EinsumDense(
            "btd,dhk->bthk",
            output_shape=(None, heads, sizes.head),
            bias_axes="hk" if sizes.bias else None,
            kernel_initializer=_normal(keras),
            name=name,
        )

    def from_heads(sizes: Sizes, name: str, scale: float) -> Any:
        return stock.EinsumDense(
            "bthk,hkd->btd",
            output_shape=(None, sizes.dim),
            bias_axes="d" if sizes.bias else None,
            kernel_initializer=_normal(keras, scale),
            name=name,
        )

    class Mix(base):
        """softmax(q k^T / sqrt(K)) v, head by head, over the tokens before each one in its own document."""

        def __init__(self, rotary: float | None, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.rotary = rotary

        def call(self, inputs: Sequence[Tensor], segments: Tensor = None) -> Tensor:
            """Returns (B, T, H, K) of queries (B, T, H, K), keys and values (B, T, G, K), segments (B, T) or None."""
            q, k, v = inputs
            if self.rotary is not None:
                turn = rotation(int(q.shape[1]), int(q.shape[3]), self.rotary)
                q, k = (_rotated(tensors, each, turn, in_tensorflow=not jax) for each in (q, k))
            return (_attend_jax if jax else _attend_dtensor)(tensors, q, k, v, segments)

    class Block(base):
        """One pre-norm block: x + attention(norm(x)), then x + feedforward(norm(x)).

        The parts of the two are dicts: variables go by their keys, and no attribute of Keras's is named `output`.
        """

        def __init__(self, sizes: Sizes, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.sizes = sizes
            name, end = self.name, 1.0 / math.sqrt(2 * sizes.depth)
            self.attention_norm = norm(sizes, f"{name}.attention_norm")
            self.attention = {
                "query": to_heads(sizes, f"{name}.attention.query", sizes.heads),
                "key": to_heads(sizes, f"{name}.attention.key", sizes.key_value_heads),
                "value": to_heads(sizes, f"{name}.attention.value", sizes.key_value_heads),
                "mix": Mix(sizes.rotary, name=f"{name}.attention.mix"),
                "output": from_heads(sizes, f"{name}.attention.output", end),
            }
            self.attention_dropout = stock.Dropout(sizes.dropout, name=f"{name}.attention_dropout")
            self.feedforward_norm = norm(sizes, f"{name}.feedforward_norm")
            gate = {"gate": projection(sizes, f"{name}.feedforward.gate", sizes.feedforward)} if sizes.gated else {}
            self.feedforward = {
                **gate,
                "up": projection(sizes, f"{name}.feedforward.up", sizes.feedforward),
                "down": projection(sizes, f"{name}.feedforward.down", sizes.dim, end),
            }
            self.feedforward_dropout = stock.Dropout(sizes.dropout, name=f"{name}.feedforward_dropout")

        def build(self, input_shape: Any) -> None:
            """Makes the weights of all that is inside."""
            sizes, tokens = self.sizes, (None, input_shape[1], self.sizes.dim)
            for each in (self.attention_norm, self.feedforward_norm):
                each.build(tokens)
            for part in ("query", "key", "value"):
                self.attention[part].build(tokens)
            self.attention["output"].build((None, input_shape[1], sizes.heads, sizes.head))
            for part, each in self.feedforward.items():
                each.build((None, input_shape[1], sizes.feedforward) if part == "down" else tokens)
            super().build(input_shape)

        def call(self, x_btd: Tensor, segments: Tensor = None, training: bool | None = None) -> Tensor:
            """Returns the tokens after the block."""
            y = self._attended(self.attention_norm(x_btd), segments)
            x_btd = x_btd + self.attention_dropout(y, training=training)
            y = self._fed_forward(self.feedforward_norm(x_btd))
            return x_btd + self.feedforward_dropout(y, training=training)

        def _attended(self, x_btd: Tensor, segments: Tensor) -> Tensor:
            heads = [self.attention[part](x_btd) for part in ("query", "key", "value")]
            return self.attention["output"](self.attention["mix"](heads, segments=segments))

        def _fed_forward(self, x_btd: Tensor) -> Tensor:
            """Returns what the hidden units give: gated by SiLU (arXiv:2002.05202), or by GELU."""
            up = self.feedforward["up"](x_btd)
            if not self.sizes.gated:
                return self.feedforward["down"](keras.activations.gelu(up, approximate=True))
            gate = self.feedforward["gate"](x_btd)
            return self.feedforward["down"](gate * tensors.sigmoid(gate) * up)

    class Head(base):
        """Logits (B, T, V) of tokens (B, T, D); `fused`: the tokens and the kernel (D, V), for a loss in chunks.

        Given the embeddings' table (V, D) too, it has no kernel of its own.
        """

        def __init__(self, vocabulary: int, *, tied: bool, fused: bool, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.vocabulary, self.tied, self.fused = vocabulary, tied, fused

        def build(self, input_shape: Any) -> None:
            """Makes the kernel."""
            if not self.tied:
                shape = (input_shape[-1], self.vocabulary)
                self.kernel = self.add_weight(shape=shape, initializer=_normal(keras), name="kernel")
            super().build(input_shape)

        def call(self, x_btd: Tensor, table: Tensor = None) -> Any:
            """Returns the logits, or what they are made of."""
            if self.fused:
                kernel = tensors.transpose(table, (1, 0)) if self.tied else tensors.convert_to_tensor(self.kernel)
                return {"hidden": x_btd, "head": kernel}
            if self.tied:
                return tensors.einsum("btd,vd->btv", x_btd, table)
            return tensors.einsum("btd,dv->btv", x_btd, self.kernel)

    return SimpleNamespace(
        TokenEmbedding=TokenEmbedding, PositionEmbedding=PositionEmbedding, Block=Block, Head=Head, norm=norm
    )


def _normal(keras: Any, scale: float = 1.0) -> Any:
    """Returns GPT-2's initializer."""
    return keras.initializers.RandomNormal(stddev=0.02 * scale)


def _rotated(tensors: Any, x_bthk: Tensor, turn: tuple[Array, Array], *, in_tensorflow: bool) -> Tensor:
    """Returns x turned by its position: the pair (a, b) becomes (a cos - b sin, b cos + a sin), never in bfloat16."""
    x = tensors.cast(x_bthk, "float32") if "bfloat16" in str(x_bthk.dtype) else x_bthk
    cosine, sine = (_constant(tensors, each, x) for each in turn)
    size = int(x.shape[-1])
    if in_tensorflow:  # a product: DTensor joins nothing along a dim that it may split
        swap, half = np.zeros((size, size), np.float32), np.arange(size // 2)
        swap[half + size // 2, half], swap[half, half + size // 2] = -1.0, 1.0
        other = tensors.einsum("bthk,kj->bthj", x, _constant(tensors, swap, x))
    else:
        a, b = x[..., : size // 2], x[..., size // 2 :]
        other = tensors.concatenate([-b, a], axis=-1)
    return tensors.cast(x * cosine + other * sine, x_bthk.dtype)


def _constant(tensors: Any, value: Array, like: Tensor) -> Tensor:
    """Returns a host array as a tensor of another one's dtype."""
    return tensors.cast(tensors.convert_to_tensor(value), like.dtype)


def _attend_jax(tensors: Any, q_bthk: Tensor, k_bsgk: Tensor, v_bsgk: Tensor, segments: Tensor) -> Tensor:
    """Returns (B, T, H, K) by JAX's own attention, which has a fused form on GPUs."""
    mask = None
    if segments is not None:
        mask = tensors.equal(tensors.expand_dims(segments, 2), tensors.expand_dims(segments, 1))
        mask = tensors.expand_dims(mask, 1)
    return tensors.dot_product_attention(q_bthk, k_bsgk, v_bsgk, mask=mask, is_causal=True)


def _attend_dtensor(tensors: Any, q_bthk: Tensor, k_bsgk: Tensor, v_bsgk: Tensor, segments: Tensor) -> Tensor:
    """Returns (B, T, H, K) by operations that DTensor splits: a token needs the keys and values of all others."""
    batch, tokens = scope.batch_axis(), int(q_bthk.shape[1])
    k, v = (scope.lay(each, [batch, None, scope.MATCH, None]) for each in (k_bsgk, v_bsgk))
    heads, groups = int(q_bthk.shape[2]), int(k.shape[2])
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
