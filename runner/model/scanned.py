"""The blocks of a decoder-only transformer as one layer, which a scan computes, with Keras on JAX.

Legend of the shape suffixes: B batch, T tokens, D model width.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from runner.model.portable import PortableLayer, Tensor, bind
from runner.model.sizes import Sizes
from runner.model.transformer import DROPOUTS, Block, dropout_masks

# Names of variables of norms that are initialized to 1; all others except kernels are initialized to 0.
_INITIALLY_ONE = ("gamma", "scale")


class Blocks(PortableLayer):
    """All blocks as one layer, with stacked variables (depth, ...). A scan computes them, compiled once."""

    def __init__(self, sizes: Sizes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = sizes
        # One dropout layer per dropout of the unrolled blocks, each with a generator of its own.
        self.dropouts = []
        if sizes.dropout:
            for index in range(sizes.depth):
                for part in DROPOUTS:
                    self.dropouts.append(self.keras.layers.Dropout(sizes.dropout, name=f"block_{index}.{part}"))

    def build(self, input_shape: Any) -> None:
        """Creates the stacked variables, under the keys that a block has."""
        block_class: Any = bind(Block, self.keras)
        make = functools.partial(block_class, self.sizes, name=self.name)
        block = _built_without_values(make, tuple(input_shape))
        # In the order of `_variables`.
        stacks: list[Any] = []
        self.attention_norm = self._stacked(block.attention_norm, stacks)
        self.feedforward_norm = self._stacked(block.feedforward_norm, stacks)
        attention_variables = {}
        for part, layer in block.attention.items():
            if layer.weights:
                attention_variables[part] = self._stacked(layer, stacks)
        self.attention = attention_variables
        self.feedforward = {part: self._stacked(layer, stacks) for part, layer in block.feedforward.items()}
        self.experts = {part: self._stacked(layer, stacks) for part, layer in block.experts.items()}
        # A function hides the block from Keras, which would otherwise track its variables as this layer's own; they
        # have no values.
        self.block_and_stacks: Callable[[], tuple[Any, list[Any]]] = lambda: (block, stacks)
        super().build(input_shape)

    def _stacked(self, layer: Any, stacks: list[Any]) -> dict[str, Any]:
        prefix = layer.name.removeprefix(f"{self.name}.").replace(".", "_")
        stacked = {}
        for variable in layer.trainable_variables:
            if variable.name == "kernel":
                initializer = layer.kernel_initializer
            elif variable.name in _INITIALLY_ONE:
                initializer = "ones"
            else:
                initializer = "zeros"
            stacked[variable.name] = self.add_weight(
                shape=(self.sizes.depth, *variable.shape),
                initializer=initializer,
                name=f"{prefix}_{variable.name}",
                # The block casts its own slice; here the cast would copy the whole stack.
                autocast=False,
            )
            stacks.append(stacked[variable.name])
        return stacked

    def call(self, x_btd: Tensor, segments: Tensor = None, training: bool | None = None) -> Tensor:
        """Returns the tokens after all blocks."""
        block, stacks = self.block_and_stacks()
        sizes = self.sizes
        ops = self.ops
        stacked_values = list(map(ops.convert_to_tensor, stacks))
        stacked_masks = None
        masks = dropout_masks(ops, self.dropouts, x_btd, sizes, training=training)
        if masks:
            stacked_masks = ops.reshape(ops.stack(masks), (sizes.depth, len(DROPOUTS), *x_btd.shape))

        def step(x: Tensor, slices: tuple[list[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
            values, block_masks = slices
            masks = []
            if block_masks is not None:
                masks = [block_masks[0], block_masks[1]]
            with self.keras.StatelessScope(zip(_variables(block), values, strict=True)):
                after: tuple[Tensor, Tensor | None] = block.call_with_masks(x, segments, masks)
            return after

        scanned = sizes.remat.applied(step, scanned=True)
        after, router_losses = ops.scan(scanned, x_btd, (stacked_values, stacked_masks))
        if training and router_losses is not None:
            self.add_loss(ops.sum(router_losses))
        return after


def _variables(block: Any) -> list[Any]:
    layers = [block.attention_norm, block.feedforward_norm]
    layers += [*block.attention.values(), *block.feedforward.values(), *block.experts.values()]
    found = []
    for layer in layers:
        found += layer.trainable_variables
    return found


def _built_without_values(make: Callable[[], Any], shape: tuple[int | None, ...]) -> Any:
    built = []

    def build() -> None:
        layer = make()
        layer.build(shape)
        built.append(layer)

    # Inside of `eval_shape` the initial values are abstract.
    importlib.import_module("jax").eval_shape(build)
    return built[0]
