"""Layers of a decoder-only transformer, for tf_keras and Keras 3 alike.

Shapes: B batch, T tokens, S tokens attended to, D dim, H heads, G heads of keys and values, R queries' heads to one of
these, K numbers a head, F hidden units, V vocabulary. Kernels of attention keep their heads as a dim of their own, so
that a rule can split them over a mesh axis.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from runner.model import attention, ops, scope

Tensor = Any  # of the Keras that a builder was given

_DROPOUTS = ("attention_dropout", "feedforward_dropout")
_ONES = ("gamma", "scale")  # variables that begin at 1


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
      remat: what a block's backward pass computes again: `none`, `full`, or the name of a policy of
        `jax.checkpoint_policies`, which says what is kept.
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
    remat: str = "none"

    @property
    def head(self) -> int:
        """Numbers of one head."""
        return self.dim // self.heads


@functools.cache
def layers(keras: ModuleType) -> SimpleNamespace:
    """Returns the layers that Keras has not, as classes of the Keras given: what a builder puts together."""
    tensors = ops.of(keras)
    jax = hasattr(keras, "ops")
    stock = keras.layers
    base: Any = stock.Layer

    class TokenEmbedding(base):  # type: ignore[misc]
        """Vectors of tokens, (B, T) whole numbers -> (B, T, D); and the table (V, D) itself, for a tied head."""

        def __init__(self, vocabulary: int, dim: int, *, gives_table: bool = False, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.vocabulary = vocabulary
            self.dim = dim
            self.gives_table = gives_table

        def build(self, input_shape: Any) -> None:
            """Makes the table."""
            # Whole precision until a row is taken: the gradients of a token that comes often are added up.
            told = {"autocast": False} if jax else {}
            self.embeddings = self.add_weight(
                shape=(self.vocabulary, self.dim), initializer=_normal(keras), name="embeddings", **told
            )
            super().build(input_shape)

        def call(self, tokens: Tensor) -> Any:
            """Returns the vectors, and the table where it is asked for."""
            table = tensors.convert_to_tensor(self.embeddings)
            x = tensors.cast(tensors.take(table, tokens, axis=0), self.compute_dtype)
            return (x, tensors.cast(table, self.compute_dtype)) if self.gives_table else x

    class PositionEmbedding(base):  # type: ignore[misc]
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

    class RMSNorm(base):  # type: ignore[misc]
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

    class Mix(base):  # type: ignore[misc]
        """softmax(q k^T / sqrt(K)) v, head by head, over the tokens before each one in its own document."""

        def __init__(self, rotary: float | None, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.rotary = rotary

        def call(self, inputs: Sequence[Tensor], segments: Tensor = None) -> Tensor:
            """Returns (B, T, H, K) of queries (B, T, H, K), keys and values (B, T, G, K), segments (B, T) or None."""
            q, k, v = inputs
            if self.rotary is not None:
                turn = attention.rotation(int(q.shape[1]), int(q.shape[3]), self.rotary)
                q, k = (attention.rotated(tensors, each, turn, on_jax=jax) for each in (q, k))
            return attention.attend(tensors, q, k, v, segments, on_jax=jax)

    class Block(base):  # type: ignore[misc]
        """One pre-norm block: x + attention(norm(x)), then x + feedforward(norm(x)).

        The parts of the two are dicts: variables go by their keys, and no attribute of Keras's is named `output`.
        """

        def __init__(self, sizes: Sizes, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.sizes = sizes
            name = self.name
            end = 1.0 / math.sqrt(2 * sizes.depth)
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
            sizes = self.sizes
            tokens = (None, input_shape[1], self.sizes.dim)
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
            dropouts = (self.attention_dropout, self.feedforward_dropout)
            if self.sizes.remat == "none":
                drop = [functools.partial(each, training=training) for each in dropouts]
                return self.computed(x_btd, segments, drop)
            # Drawn outside of what is computed twice: a generator has no state to be moved in there.
            kept = _kept(tensors, dropouts, x_btd, self.sizes, training=training)
            return _again(self.masked, self.sizes.remat)(x_btd, segments, kept)

        def masked(self, x_btd: Tensor, segments: Tensor, kept: Sequence[Tensor]) -> Tensor:
            """Returns the same of masks (B, T, D), True where a number stays; none: all do."""

            def drop(mask: Tensor) -> Any:
                return lambda y: tensors.where(mask, y / (1.0 - self.sizes.dropout), tensors.zeros_like(y))

            return self.computed(x_btd, segments, [drop(mask) for mask in kept] or [lambda y: y] * 2)

        def computed(self, x_btd: Tensor, segments: Tensor, drop: Sequence[Any]) -> Tensor:
            """Returns the tokens after the block, of the functions that its two branches end with."""
            x_btd = x_btd + drop[0](self._attended(self.attention_norm(x_btd), segments))
            return x_btd + drop[1](self._fed_forward(self.feedforward_norm(x_btd)))

        def _attended(self, x_btd: Tensor, segments: Tensor) -> Tensor:
            query, *pair = (self.attention[part] for part in ("query", "key", "value"))
            heads = [query(x_btd), *(scope.met_by(each(x_btd), each.kernel, query.kernel) for each in pair)]
            return self.attention["output"](self.attention["mix"](heads, segments=segments))

        def _fed_forward(self, x_btd: Tensor) -> Tensor:
            """Returns what the hidden units give: gated by SiLU (arXiv:2002.05202), or by GELU."""
            up = self.feedforward["up"](x_btd)
            if not self.sizes.gated:
                return self.feedforward["down"](keras.activations.gelu(up, approximate=True))
            gate = self.feedforward["gate"](x_btd)
            return self.feedforward["down"](gate * tensors.sigmoid(gate) * up)

    class Blocks(base):  # type: ignore[misc]
        """The same blocks with their variables stacked, (depth, ...), computed by a scan: compiled once."""

        def __init__(self, sizes: Sizes, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.sizes = sizes
            names = [f"block_{index}.{part}" for index in range(sizes.depth) for part in _DROPOUTS]
            # Those of the blocks one by one, so that the masks are the same.
            self.dropouts = [stock.Dropout(sizes.dropout, name=name) for name in names if sizes.dropout]

        def build(self, input_shape: Any) -> None:
            """Makes the variables, by the keys that those of a block go by."""
            block = _without_values(lambda: Block(self.sizes, name=self.name), tuple(input_shape))
            pairs: list[tuple[Any, Any]] = []

            def stacked(layer: Any) -> dict[str, Any]:
                made = {}
                for variable in layer.trainable_variables:
                    made[variable.name] = self.add_weight(
                        shape=(self.sizes.depth, *variable.shape),
                        initializer=getattr(layer, "kernel_initializer", None)
                        if variable.name == "kernel"
                        else ("ones" if variable.name in _ONES else "zeros"),
                        name=f"{layer.name}.{variable.name}".removeprefix(f"{self.name}.").replace(".", "_"),
                        autocast=False,  # the block does it, of its own part
                    )
                    pairs.append((variable, made[variable.name]))
                return made

            self.attention_norm = stacked(block.attention_norm)
            self.feedforward_norm = stacked(block.feedforward_norm)
            self.attention = {part: stacked(layer) for part, layer in block.attention.items() if layer.weights}
            self.feedforward = {part: stacked(layer) for part, layer in block.feedforward.items()}

            def held() -> tuple[Any, list[tuple[Any, Any]]]:
                return block, pairs

            # Behind a function: Keras would take the block's variables, which have no values, for the layer's own.
            self.block = held
            super().build(input_shape)

        def call(self, x_btd: Tensor, segments: Tensor = None, training: bool | None = None) -> Tensor:
            """Returns the tokens after all blocks."""
            block, pairs = self.block()
            sizes = self.sizes
            kept = _kept(tensors, self.dropouts, x_btd, sizes, training=training)
            masks = tensors.reshape(tensors.stack(kept), (sizes.depth, 2, *x_btd.shape)) if kept else None

            def step(x: Tensor, given: tuple[list[Tensor], Tensor]) -> tuple[Tensor, None]:
                values, masks = given
                with keras.StatelessScope(zip([variable for variable, _ in pairs], values, strict=True)):
                    return block.masked(x, segments, [] if masks is None else [masks[0], masks[1]]), None

            body = step if sizes.remat == "none" else _again(step, sizes.remat, scanned=True)
            values = [tensors.convert_to_tensor(held) for _, held in pairs]
            return tensors.scan(body, x_btd, (values, masks))[0]

    class Head(base):  # type: ignore[misc]
        """Logits (B, T, V) of tokens (B, T, D); `fused`: the tokens and the kernel (D, V), for a loss in chunks.

        Given the embeddings' table (V, D) too, it has no kernel of its own.
        """

        def __init__(self, vocabulary: int, *, tied: bool, fused: bool, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.vocabulary = vocabulary
            self.tied = tied
            self.fused = fused

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
        TokenEmbedding=TokenEmbedding,
        PositionEmbedding=PositionEmbedding,
        Block=Block,
        Blocks=Blocks,
        Head=Head,
        norm=norm,
    )


def _normal(keras: Any, scale: float = 1.0) -> Any:
    """Returns GPT-2's initializer."""
    return keras.initializers.RandomNormal(stddev=0.02 * scale)


def _kept(tensors: Any, dropouts: Sequence[Any], x: Tensor, sizes: Sizes, *, training: bool | None) -> list[Tensor]:
    """Returns what dropout layers leave, True where a number stays; nothing where all does."""
    if not training or not sizes.dropout:
        return []
    return [tensors.greater(each(tensors.ones_like(x), training=True), 0) for each in dropouts]


def _again(function: Any, policy: str, *, scanned: bool = False) -> Any:
    """Returns a function of JAX that computes itself again for its gradient, but for what a policy keeps.

    A scan's body can't be merged with what computes it again, so that nothing has to keep the two apart.
    """
    jax = importlib.import_module("jax")  # which Keras 3 has imported
    kept = None if policy == "full" else getattr(jax.checkpoint_policies, policy)
    # A new function each time: JAX remembers what it traced of one, and this one holds other values.
    return jax.checkpoint(lambda *arguments: function(*arguments), policy=kept, prevent_cse=not scanned)


def _without_values(make: Any, shape: tuple[int | None, ...]) -> Any:
    """Returns a built layer whose variables have shapes and no memory."""
    made = []

    def build() -> None:
        made.append(make())
        made[0].build(shape)

    importlib.import_module("jax").eval_shape(build)
    return made[0]
