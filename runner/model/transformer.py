# ruff: noqa: D102 - a layer's class documents its call
"""Layers of a decoder-only transformer, for tf_keras and Keras 3.

Legend of the shape suffixes: B batch, T tokens, D model width, H heads, G key/value heads, K head width, F hidden
units, E experts, V vocabulary. Kernels of attention keep their heads as a dim of their own, so that a rule can shard
them over a mesh axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from runner.model import attention, experts, scope
from runner.model.portable import PortableLayer, Tensor, bind
from runner.model.sizes import Sizes

# Standard deviation of GPT-2's initial weights (Radford et al., 2019; its released code).
_STDDEV = 0.02

# The dropout layers of a block, in the order in which it calls them.
DROPOUTS = ("attention_dropout", "feedforward_dropout")


class TokenEmbedding(PortableLayer):
    """Embeds token ids (B, T) as (B, T, D); it can also return the table (V, D), for tied embeddings."""

    def __init__(self, vocabulary: int, dim: int, *, gives_table: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary = vocabulary
        self.dim = dim
        self.gives_table = gives_table

    def build(self, input_shape: Any) -> None:
        options: dict[str, Any] = {}
        if self.on_jax:
            # Under mixed precision Keras 3 would cast the whole table before a row is looked up. The gradient of a
            # frequent token is a sum of many rows, so it must be added up in float32.
            options["autocast"] = False
        self.embeddings = self.add_weight(
            shape=(self.vocabulary, self.dim), initializer=_normal(self.keras), name="embeddings", **options
        )
        super().build(input_shape)

    def call(self, tokens: Tensor) -> Any:
        """Returns the vectors, or the vectors and the table if `gives_table`."""
        table = self.ops.convert_to_tensor(self.embeddings)
        x_btd = self.ops.cast(self.ops.take(table, tokens, axis=0), self.compute_dtype)
        if not self.gives_table:
            return x_btd
        return x_btd, self.ops.cast(table, self.compute_dtype)


class PositionEmbedding(PortableLayer):
    """Adds a learned vector to each token, by its position in the row."""

    def __init__(self, length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length

    def build(self, input_shape: Any) -> None:
        """Creates the table (length, D)."""
        shape = (self.length, input_shape[-1])
        self.embeddings = self.add_weight(shape=shape, initializer=_normal(self.keras), name="embeddings")
        super().build(input_shape)

    def call(self, x_btd: Tensor, positions: Tensor = None) -> Tensor:
        """Returns the tokens with their positions added: int32 (B, T), or None for their order in the row."""
        tokens = int(x_btd.shape[1])
        table = self.ops.cast(self.ops.convert_to_tensor(self.embeddings), x_btd.dtype)
        if positions is not None:
            return x_btd + self.ops.take(table, positions, axis=0)
        if tokens != self.length:
            table = table[:tokens]
        return x_btd + table


class RMSNorm(PortableLayer):
    """Root-mean-square norm of the last dim, in float32: arXiv:1910.07467.

    The output is x / sqrt(mean(x^2) + epsilon) * scale.
    """

    def __init__(self, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: Any) -> None:
        """Creates the scale (D,), initially 1."""
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")
        super().build(input_shape)

    def call(self, x_btd: Tensor) -> Tensor:
        x = x_btd
        if self.compute_dtype == "bfloat16":
            # The mean of squares needs more than the 8 bits of a bfloat16 mantissa.
            x = self.ops.cast(x, "float32")
        mean_square = self.ops.mean(self.ops.square(x), axis=-1, keepdims=True)
        x = x * self.ops.rsqrt(mean_square + self.epsilon)
        return self.ops.cast(x * self.ops.cast(self.scale, x.dtype), self.compute_dtype)


class Mix(PortableLayer):
    """Causal attention of each head, within the same document: softmax(q k^T / sqrt(K)) v over the earlier tokens."""

    def __init__(self, rotary: float | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rotary = rotary

    def call(self, inputs: Sequence[Tensor], segments: Tensor = None) -> Tensor:
        """Returns the attended values (B, T, H, K).

        Args:
          inputs: queries (B, T, H, K), keys (B, T, G, K) and values (B, T, G, K).
          segments: document of each token (B, T); None: each row is one document.
        """
        q, k, v = inputs
        if self.rotary is not None:
            rotation = attention.rotation(int(q.shape[1]), int(q.shape[3]), self.rotary)
            q = attention.rotated(self.ops, q, rotation, on_jax=self.on_jax)
            k = attention.rotated(self.ops, k, rotation, on_jax=self.on_jax)
        return attention.attend(self.ops, q, k, v, segments, on_jax=self.on_jax)


class Block(PortableLayer):
    """One pre-norm block: x + attention(norm(x)), then x + feedforward(norm(x)).

    The parts of both branches are held in dicts: the paths of variables contain the keys, and `output` can't be an
    attribute, since Keras layers have a property of that name.
    """

    def __init__(self, sizes: Sizes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        keras = self.keras
        name = self.name
        # A block has two branches, so the model adds up 2 * depth of them.
        residual_scale = 1.0 / math.sqrt(2 * sizes.depth)
        dropout = keras.layers.Dropout
        self.sizes = sizes
        self.attention_norm = make_norm(keras, sizes, f"{name}.attention_norm")
        self.attention = {
            "query": _to_heads(keras, sizes, f"{name}.attention.query", sizes.heads),
            "key": _to_heads(keras, sizes, f"{name}.attention.key", sizes.key_value_heads),
            "value": _to_heads(keras, sizes, f"{name}.attention.value", sizes.key_value_heads),
            "mix": bind(Mix, keras)(sizes.rotary, name=f"{name}.attention.mix"),
            "output": _from_heads(keras, sizes, f"{name}.attention.output", residual_scale),
        }
        self.attention_dropout = dropout(sizes.dropout, name=f"{name}.attention_dropout")
        self.feedforward_norm = make_norm(keras, sizes, f"{name}.feedforward_norm")
        # Of the two, one is empty.
        self.feedforward: dict[str, Any] = {}
        self.experts: dict[str, Any] = {}
        if sizes.experts is None:
            self.feedforward = _feedforward(keras, sizes, f"{name}.feedforward", residual_scale)
        else:
            self.experts = experts.layers(
                keras,
                f"{name}.experts",
                dim=sizes.dim,
                hidden=sizes.feedforward,
                count=sizes.experts,
                initial=functools.partial(_normal, keras),
                scale=residual_scale,
            )
        self.feedforward_dropout = dropout(sizes.dropout, name=f"{name}.feedforward_dropout")

    def build(self, input_shape: Any) -> None:
        sizes = self.sizes
        length = input_shape[1]
        tokens = (None, length, sizes.dim)
        self.attention_norm.build(tokens)
        self.feedforward_norm.build(tokens)
        for part in ("query", "key", "value"):
            self.attention[part].build(tokens)
        self.attention["output"].build((None, length, sizes.heads, sizes.head_width))
        hidden_units: tuple[int | None, ...] = (None, length, sizes.feedforward)
        if sizes.experts is not None:
            hidden_units = (None, length, sizes.experts, sizes.feedforward)
        for part, layer in {**self.feedforward, **self.experts}.items():
            layer.build(hidden_units if part == "down" else tokens)
        super().build(input_shape)

    def call(self, x_btd: Tensor, segments: Tensor = None, training: bool | None = None) -> Tensor:
        if self.sizes.remat.is_off:
            first = functools.partial(self.attention_dropout, training=training)
            second = functools.partial(self.feedforward_dropout, training=training)
            after, router_loss = self._branches(x_btd, segments, first, second)
        else:
            dropouts = [self.attention_dropout, self.feedforward_dropout]
            # The masks are drawn outside of the function that is computed twice: a random generator of Keras can't
            # update its state inside of `jax.checkpoint`.
            masks = dropout_masks(self.ops, dropouts, x_btd, self.sizes, training=training)
            after, router_loss = self.sizes.remat.applied(self.call_with_masks)(x_btd, segments, masks)
        if training and router_loss is not None:
            self.add_loss(router_loss)
        return after

    def call_with_masks(
        self, x_btd: Tensor, segments: Tensor, masks: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the tokens after the block, with dropout masks that are already drawn, and the router's loss.

        The loss is an output, since a layer can't add it inside of `jax.checkpoint` and of a scan.

        Args:
          segments: document of each token (B, T), or None.
          masks: of both branches (B, T, D), True where an element is kept; empty: no dropout.
        """
        if not masks:
            return self._branches(x_btd, segments, _identity, _identity)
        attention_mask, feedforward_mask = masks
        first = functools.partial(self._drop, attention_mask)
        second = functools.partial(self._drop, feedforward_mask)
        return self._branches(x_btd, segments, first, second)

    def _drop(self, mask: Tensor, x_btd: Tensor) -> Tensor:
        return self.ops.where(mask, x_btd / (1.0 - self.sizes.dropout), self.ops.zeros_like(x_btd))

    def _branches(
        self,
        x_btd: Tensor,
        segments: Tensor,
        attention_dropout: Callable[[Tensor], Tensor],
        feedforward_dropout: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor | None]:
        x_btd = self.sizes.remat.named("input", x_btd)
        x_btd = x_btd + attention_dropout(self._attention_branch(self.attention_norm(x_btd), segments))
        branch, router_loss = self._feedforward_branch(self.feedforward_norm(x_btd))
        return x_btd + feedforward_dropout(branch), router_loss

    def _attention_branch(self, x_btd: Tensor, segments: Tensor) -> Tensor:
        query = self.attention["query"]
        key = self.attention["key"]
        value = self.attention["value"]
        q = query(x_btd)
        # A rule may shard key/value heads over another axis than query heads.
        k = scope.met_by(key(x_btd), key.kernel, query.kernel)
        v = scope.met_by(value(x_btd), value.kernel, query.kernel)
        q = self.sizes.remat.named("query", q)
        k = self.sizes.remat.named("key", k)
        v = self.sizes.remat.named("value", v)
        attended = self.sizes.remat.named("attended", self.attention["mix"]([q, k, v], segments=segments))
        return self.sizes.remat.named("attention_output", self.attention["output"](attended))

    def _feedforward_branch(self, x_btd: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the branch, and the loss of a router that has one.

        Hidden units are gated by SiLU (SwiGLU) or GELU (GEGLU, as in Gemma: arXiv:2002.05202), or are GELU(up).
        """
        if self.sizes.experts is not None:
            return self._mixture_output(x_btd)
        if self.sizes.is_gated:
            hidden_btf = self._gated(self.feedforward, x_btd)
        else:
            up = self.sizes.remat.named("up", self.feedforward["up"](x_btd))
            hidden_btf = self.keras.activations.gelu(up, approximate=True)
        return self.feedforward["down"](hidden_btf), None

    def _gated(self, parts: Mapping[str, Any], x_btd: Tensor) -> Tensor:
        """Returns the gated hidden units (B, T, F) of a feed-forward, or (B, T, E, F) of all experts."""
        up = self.sizes.remat.named("up", parts["up"](x_btd))
        gate = self.sizes.remat.named("gate", parts["gate"](x_btd))
        if self.sizes.activation == "geglu":
            return self.keras.activations.gelu(gate, approximate=True) * up
        return gate * self.ops.sigmoid(gate) * up

    def _mixture_output(self, x_btd: Tensor) -> tuple[Tensor, Tensor | None]:
        sizes = self.sizes
        routing = experts.route(self.ops, self.experts["router"](x_btd), sizes.experts_per_token)
        hidden_btef = self._gated(self.experts, x_btd)
        # An output is linear in the hidden units, so these are weighted: they exist anyway.
        weights_bte1 = self.ops.expand_dims(self.ops.cast(routing.weights, hidden_btef.dtype), -1)
        output = self.experts["down"](hidden_btef * weights_bte1)
        if sizes.router_loss is None:
            return output, None
        return output, sizes.router_loss * experts.imbalance(self.ops, routing, sizes.experts_per_token)


class Head(PortableLayer):
    """Maps tokens (B, T, D) to logits (B, T, V).

    With `tied` it is called with the embedding table (V, D) and has no kernel of its own. With `fused` it returns the
    tokens and the kernel (D, V) instead of the logits, so that the loss can compute them in chunks.
    """

    def __init__(self, vocabulary: int, *, tied: bool, fused: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary = vocabulary
        self.tied = tied
        self.fused = fused

    def build(self, input_shape: Any) -> None:
        """Creates the kernel (D, V), unless tied."""
        if not self.tied:
            shape = (input_shape[-1], self.vocabulary)
            self.kernel = self.add_weight(shape=shape, initializer=_normal(self.keras), name="kernel")
        super().build(input_shape)

    def call(self, x_btd: Tensor, table: Tensor = None) -> Any:
        """Returns the logits; if `fused` {"hidden": (B, T, D), "head": (D, V)}."""
        if self.fused:
            if self.tied:
                return {"hidden": x_btd, "head": self.ops.transpose(table, (1, 0))}
            return {"hidden": x_btd, "head": self.ops.convert_to_tensor(self.kernel)}
        if self.tied:
            return self.ops.einsum("btd,vd->btv", x_btd, table)
        return self.ops.einsum("btd,dv->btv", x_btd, self.kernel)


def make_norm(keras: ModuleType, sizes: Sizes, name: str) -> Any:
    """Returns a new norm layer of the kind that `sizes.norm` names."""
    if sizes.norm == "rms":
        return bind(RMSNorm, keras)(sizes.epsilon, name=name)
    return keras.layers.LayerNormalization(epsilon=sizes.epsilon, name=name)


def _projection(keras: ModuleType, sizes: Sizes, name: str, units: int, scale: float = 1.0) -> Any:
    return keras.layers.Dense(units, use_bias=sizes.bias, kernel_initializer=_normal(keras, scale), name=name)


def _feedforward(keras: ModuleType, sizes: Sizes, name: str, residual_scale: float) -> dict[str, Any]:
    # The gate is created first: in Keras 3 an initializer draws its seed when it is created, so the order of the
    # layers decides the initial values.
    parts = {}
    if sizes.is_gated:
        parts["gate"] = _projection(keras, sizes, f"{name}.gate", sizes.feedforward)
    parts["up"] = _projection(keras, sizes, f"{name}.up", sizes.feedforward)
    parts["down"] = _projection(keras, sizes, f"{name}.down", sizes.dim, residual_scale)
    return parts


def _to_heads(keras: ModuleType, sizes: Sizes, name: str, heads: int) -> Any:
    """Returns a projection (B, T, D) -> (B, T, heads, K)."""
    return keras.layers.EinsumDense(
        "btd,dhk->bthk",
        output_shape=(None, heads, sizes.head_width),
        bias_axes="hk" if sizes.bias else None,
        kernel_initializer=_normal(keras),
        name=name,
    )


def _from_heads(keras: ModuleType, sizes: Sizes, name: str, scale: float) -> Any:
    """Returns a projection (B, T, H, K) -> (B, T, D)."""
    return keras.layers.EinsumDense(
        "bthk,hkd->btd",
        output_shape=(None, sizes.dim),
        bias_axes="d" if sizes.bias else None,
        kernel_initializer=_normal(keras, scale),
        name=name,
    )


def _normal(keras: Any, scale: float = 1.0) -> Any:
    """Returns a new normal initializer, one per variable. In Keras 3 each draws its seed when it is created."""
    return keras.initializers.RandomNormal(stddev=_STDDEV * scale)


def _identity(x: Tensor) -> Tensor:
    return x


def dropout_masks(
    ops: Any, dropouts: Sequence[Any], x: Tensor, sizes: Sizes, *, training: bool | None
) -> list[Tensor]:
    """Returns the mask of each dropout layer, True where an element is kept; none if there is no dropout."""
    if not training or not sizes.dropout:
        return []
    return [ops.greater(dropout(ops.ones_like(x), training=True), 0) for dropout in dropouts]
