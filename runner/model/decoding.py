"""Token-by-token decoding of `runner.model.gpt` with a key/value cache, for Keras on JAX.

A cache has a slot per token of a row: those of the prompt first, padded at their end to one length, then one per
written token. So each new token of all rows is in the same slot, whatever the lengths of their prompts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.model.portable import Tensor
from runner.model.scanned import Blocks
from runner.model.sizes import Sizes
from runner.model.transformer import (
    Block,
    CachedTokens,
    Head,
    KeyValueCache,
    PositionEmbedding,
    RMSNorm,
    TokenEmbedding,
)

# Names that `runner.model.gpt` gives its layers.
_DROPOUT = "embedding_dropout"
_NORM = "norm"


class Decoder:
    """The layers of a model of `runner.model.gpt`, called one after another.

    Shapes: B rows, T new tokens, S slots.

    Attributes:
      positions: number of positions that the model has learned; None: it has rotary ones, for any number.
      pads_prompts: True: prompts of different lengths may be padded at their end.
      rows_dim: dim of the rows in a cache (B, S, G, K), which a scan may stack.
    """

    pads_prompts = True
    rows_dim = -4

    def __init__(self, layers: Sequence[Any]) -> None:
        """Takes the layers of a model, without its inputs, in their order."""
        self._embedding = layers[0]
        self._position_embedding = None
        self.positions: int | None = None
        if isinstance(layers[1], PositionEmbedding):
            self._position_embedding = layers[1]
            self.positions = layers[1].length
        self._blocks = [layer for layer in layers if isinstance(layer, Block | Blocks)]
        self._norm, self._head = layers[-2:]

    def cache_shapes(self, rows: int, slots: int) -> list[tuple[tuple[int, ...], str]]:
        """Returns the shape and the dtype of each cache: keys and values of each layer, one after the other."""
        shapes = []
        for layer in self._blocks:
            sizes: Sizes = layer.sizes
            shape: list[int] = [rows, slots, sizes.key_value_heads, sizes.head_width]
            if isinstance(layer, Blocks):
                shape.insert(0, sizes.depth)
            shapes += [(tuple(shape), layer.compute_dtype)] * 2
        return shapes

    def __call__(self, tokens_bt: Tensor, caches: Sequence[Tensor], new: CachedTokens) -> tuple[Any, list[Tensor]]:
        """Returns the model's outputs for new tokens, and the caches with them.

        Args:
          tokens_bt: int32.
          caches: of `cache_shapes`.
          new: where the tokens go.
        """
        x = self._embedding(tokens_bt)
        head_arguments = []
        if self._head.tied:
            x, table = x
            head_arguments.append(table)
        if self._position_embedding is not None:
            x = self._position_embedding(x, positions=new.positions)
        new_caches: list[Tensor] = []
        for layer, keys, values in zip(self._blocks, caches[::2], caches[1::2], strict=True):
            x, new_cache = layer.call_with_cache(x, KeyValueCache(keys, values), new)
            new_caches += new_cache
        return self._head(self._norm(x), *head_arguments), new_caches


def of(model: Any) -> Decoder | None:
    """Returns the decoder of a Keras 3 model; None if its layers are not those of `runner.model.gpt`."""
    layers = [layer for layer in model.layers if type(layer).__name__ != "InputLayer"]
    if len(layers) < 4 or not isinstance(layers[0], TokenEmbedding) or not isinstance(layers[-1], Head):
        return None
    norm = layers[-2]
    inner = layers[1:-2]
    is_norm = norm.name == _NORM and (isinstance(norm, RMSNorm) or type(norm).__name__ == "LayerNormalization")
    is_known = [isinstance(layer, PositionEmbedding | Block | Blocks) or layer.name == _DROPOUT for layer in inner]
    if not is_norm or not all(is_known):
        return None
    return Decoder(layers)
