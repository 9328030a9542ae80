"""The blocks of a decoder-only transformer as one layer, which a scan computes, with Keras on JAX.

Legend of the shape suffixes: B batch, T tokens, D model width.
"""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

from runner.model.portable import PortableLayer, Tensor, bind
from runner.model.sizes import Sizes
from runner.model.transformer import DROPOUTS, Block, dropout_masks

# Names of variables of norms that are initialized to 1; all others except kernels are initialized to 0.
_INITIALLY_ONE = ("gamma", "scale")

# (tokens, slices of stacked arrays) -> (tokens, another output).
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


class Blocks(PortableLayer):
    """All blocks as one layer, with stacked variables (depth, ...).

    A scan computes them, compiled once.
    """

    def __init__(self, sizes: Sizes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = sizes
        # One dropout layer per dropout of the unrolled blocks, with the same names: a mask depends on the name of its
        # layer, so a scanned model draws the same masks as an unrolled one.
        self.dropouts = []
        if sizes.dropout:
            for index in range(sizes.depth):
                for part in DROPOUTS:
                    self.dropouts.append(self.keras.layers.Dropout(sizes.dropout, name=f"block_{index}.{part}"))

    def build(self, input_shape: Any) -> None:
        """Creates the stacked variables, under the keys that a block has."""
        blocks = self._blocks_without_values(tuple(input_shape))
        block = blocks[0]
        # In the order of `_variables`.
        stacks: list[Any] = []
        self.attention_norm = self._stacked(block.attention_norm, stacks)
        self.feedforward_norm = self._stacked(block.feedforward_norm, stacks)
        if self.sizes.post_norm:
            self.attention_post_norm = self._stacked(block.attention_post_norm, stacks)
            self.feedforward_post_norm = self._stacked(block.feedforward_post_norm, stacks)
        attention_variables = {}
        for part, layer in block.attention.items():
            if layer.weights:
                attention_variables[part] = self._stacked(layer, stacks)
        self.attention = attention_variables
        self.feedforward = {part: self._stacked(layer, stacks) for part, layer in block.feedforward.items()}
        self.experts = {part: self._stacked(layer, stacks) for part, layer in block.experts.items()}
        # A function hides the blocks from Keras, which would otherwise track their variables as this layer's own; they
        # have no values.
        self.blocks_and_stacks: Callable[[], tuple[list[Any], list[Any]]] = lambda: (blocks, stacks)
        super().build(input_shape)

    def _blocks_without_values(self, shape: tuple[int | None, ...]) -> list[Any]:
        """Returns a block per index of a period: one of each kind, local and global."""
        by_kind: dict[bool, Any] = {}
        blocks = []
        for index in range(self.sizes.period):
            kind = self.sizes.is_local(index)
            if kind not in by_kind:
                block_class: Any = bind(Block, self.keras)
                make = functools.partial(block_class, self.sizes, is_local=kind, name=self.name)
                by_kind[kind] = _built_without_values(make, shape)
            blocks.append(by_kind[kind])
        return blocks

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
        blocks, stacks = self.blocks_and_stacks()
        sizes = self.sizes
        ops = self.ops
        stacked_values = [ops.convert_to_tensor(stacked) for stacked in stacks]
        stacked_masks = None
        masks = dropout_masks(ops, self.dropouts, x_btd, sizes, training=training)
        if masks:
            stacked_masks = ops.reshape(ops.stack(masks), (sizes.depth, len(DROPOUTS), *x_btd.shape))

        def step(block: Any, x: Tensor, slices: tuple[list[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
            values, block_masks = slices
            masks = []
            if block_masks is not None:
                masks = [block_masks[0], block_masks[1]]
            with self.keras.StatelessScope(zip(_variables(block), values, strict=True)):
                after: tuple[Tensor, Tensor | None] = block.call_with_masks(x, segments, masks)
            return after

        # Only in a scan of single blocks does the loop itself keep XLA from joining what is computed twice.
        is_scanned = len(blocks) == 1
        steps = [sizes.remat.applied(functools.partial(step, block), scanned=is_scanned) for block in blocks]
        after, router_losses = self._computed(steps, x_btd, (stacked_values, stacked_masks))
        if training and router_losses is not None:
            self.add_loss(ops.sum(router_losses))
        return after

    def _computed(self, steps: Sequence[Step], x_btd: Tensor, stacked: Any) -> tuple[Tensor, Any]:
        """Returns the tokens after all blocks, and the blocks' other outputs, stacked (depth, ...).

        Local and global blocks are of different programs, so a step of the scan computes a whole period of them. What
        is left of the depth follows the scan.
        """
        ops = self.ops
        period = len(steps)
        if period == 1:
            result: tuple[Tensor, Any] = ops.scan(steps[0], x_btd, stacked)
            return result
        # `keras.tree` takes None for a leaf.
        tree = importlib.import_module("jax").tree
        periods = self.sizes.depth // period
        in_scan = periods * period

        def compute_period(x: Tensor, slices: Any) -> tuple[Tensor, Any]:
            outputs = []
            for index, step in enumerate(steps):
                x, output = step(x, tree.map(operator.itemgetter(index), slices))
                outputs.append(output)
            return x, tree.map(lambda *arrays: ops.stack(arrays), *outputs)

        by_period = tree.map(lambda a: ops.reshape(a[:in_scan], (periods, period, *a.shape[1:])), stacked)
        x_btd, outputs = ops.scan(compute_period, x_btd, by_period)
        outputs = tree.map(lambda a: ops.reshape(a, (in_scan, *a.shape[2:])), outputs)
        for index in range(in_scan, self.sizes.depth):
            x_btd, output = steps[index - in_scan](x_btd, tree.map(operator.itemgetter(index), stacked))
            outputs = tree.map(lambda a, last: ops.concatenate([a, last[None]]), outputs, output)
        return x_btd, outputs


def _variables(block: Any) -> list[Any]:
    layers = [block.attention_norm, block.feedforward_norm]
    if block.sizes.post_norm:
        layers += [block.attention_post_norm, block.feedforward_post_norm]
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
