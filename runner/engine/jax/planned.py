"""The engine `jax` for devices that are not here: it traces and compiles, and never runs a step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Lowered

from runner import layout
from runner.data.base import WEIGHT
from runner.engine.base import HostBatches, LossShapes, LossSplit, PlacedBatches, TracedSizes
from runner.engine.calls import cut
from runner.engine.jax import elsewhere, private
from runner.engine.jax.compile import Options
from runner.engine.jax.engine import JaxEngine
from runner.engine.jax.layers.chunked_loss import bytes_of_chunk, chunk_count
from runner.engine.jax.layers.fused_attention import divide_heads, head_counts
from runner.engine.jax.partitioning import MeshLayout, Partitioning, token_parts
from runner.layout.axes import names_of
from runner.layout.mesh import device_kind


class PlannedEngine(JaxEngine):
    """Keras 3 on JAX for a plan: by arithmetic, or compiled by the compiler of the config's hardware."""

    # Another engine has checked the same model, which takes a trace of its own.
    is_checked = False

    def _make_mesh(self) -> Mesh:
        config = self._config
        return elsewhere.make_mesh(config.mesh.axes, config.plan.compiler, config.hardware)

    def _attention(self) -> AbstractContextManager[None]:
        config = self._config
        return elsewhere.attention_of(config.hardware.kind or config.mesh.device, config.plan.compiler)

    def _make_programs(self) -> None:
        if self._config.plan.compiler == elsewhere.ARITHMETIC:
            # Nothing is compiled.
            self._make_step()
            return
        with self._attention():
            super()._make_programs()

    def _check_model(self) -> None:
        if not self.is_checked:
            super()._check_model()

    def _partitioning(self) -> Partitioning:
        self._loss_arrays: list[tuple[int, ...]] = []
        partitioning = super()._partitioning()
        tokens = partitioning.tokens

        def constrained(array: jax.Array, dim: int) -> jax.Array:
            self._loss_arrays.append(array.shape)
            return tokens.constrain(array, dim)

        return replace(partitioning, tokens=replace(tokens, constrain=constrained))

    def _noting_heads(self, attention: private.ArrayFunction) -> private.ArrayFunction:

        def noted(query: jax.Array, key: jax.Array, value: jax.Array, **options: object) -> jax.Array:
            self._head_counts[head_counts((query, key))] = None
            attended: jax.Array = attention(query, key, value, **options)
            return attended

        return noted

    def traced_sizes(self) -> TracedSizes:
        """Returns the sizes of losses and attentions that `saved_activations` has traced."""
        return TracedSizes(self._loss_shapes(), tuple(self._head_counts))

    def _loss_shapes(self) -> tuple[LossShapes, ...]:
        found: dict[LossShapes, None] = {}
        tokens = 0
        # A loss constrains its head (P, S, D, V), then its tokens (C, P, S, N, D) and (C, P, S, N).
        heads: list[tuple[int, ...]] = []
        for shape in self._loss_arrays:
            if len(shape) == 5:
                chunks, examples, sequence, own_tokens, _ = shape
                tokens = chunks * examples * sequence * own_tokens // self._microbatch_size
                _, _, features, vocabulary = heads[-1]
                found[LossShapes(tokens, features, vocabulary)] = None
            elif len(shape) == 4:
                heads.append(shape)
        return tuple(found)

    def traced_as(
        self, shapes: Mapping[str, tuple[int, ...]], sizes: TracedSizes
    ) -> tuple[tuple[Hashable, ...], LossSplit]:
        """Returns what the traced forward pass depends on beside model and config, and how it splits the losses.

        Two meshes with the same first value have the same forward pass, except for the sizes of C, P and S in the
        arrays of the losses. It may be asked before the engine is built.
        """
        config = self._config
        mesh = self._make_mesh()
        placements = layout.resolve(config.layout, shapes, self._axes)
        on = MeshLayout(mesh, config.layout, placements, self._array_specs)
        parts = token_parts(on, self._data, on.roles())
        most_bytes = bytes_of_chunk(device_kind(config.mesh))
        chunks = []
        for loss in sizes.losses:
            count = chunk_count(parts, self._microbatch_size, loss.tokens, loss.vocabulary, most_bytes)
            # A loss in one chunk is computed whole if there are several parts, see `chunked`.
            is_whole = count == 1 and parts.examples * parts.sequence > 1
            chunks.append(0 if is_whole else count)
        split = LossSplit(tuple(chunks), parts.examples, parts.sequence)
        splits_tokens = parts.sequence > 1
        splits_rows = any(any(spec[1:]) for spec in self._array_specs.values())
        # Fused attention is left out where tokens are split, and where an axis does not divide the heads.
        (batch_axis,) = self._array_specs[WEIGHT]
        others = [size for axis, size in self._axes.items() if axis not in names_of(batch_axis)]
        fused = tuple(not splits_tokens and divide_heads(others, heads) for heads in sizes.heads)
        return (split.joined.chunks, splits_rows, fused), split

    def place(self, batches: HostBatches) -> PlacedBatches:
        """Returns the shapes of a call's arrays with their shardings."""
        arrays: dict[str, jax.ShapeDtypeStruct] = {}
        for name, array in cut(batches, self._microbatches).items():
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            arrays[name] = jax.ShapeDtypeStruct(array.shape, dtype, sharding=self._stacked_shardings[name])
        return PlacedBatches(arrays, batches.weights, batches.steps)

    def _lowered(self, arguments: Sequence[object]) -> Lowered:
        with self._attention():
            return super()._lowered(arguments)

    def _compiler_options(self) -> Options:
        return {}

    def saved_activations(self) -> list[tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each whole array that a microbatch's forward pass keeps for the backward pass."""
        count = jax.ShapeDtypeStruct((), np.float32)
        microstep = jax.ShapeDtypeStruct((), np.int32)
        step = self._functions

        def losses(trainable: list[jax.Array], *arguments: Any) -> tuple[jax.Array, object]:
            return step.losses(step.used_weights(trainable), *arguments)

        state = self._state
        self._head_counts: dict[tuple[int, ...], None] = {}
        with self._attention(), private.attention_replaced(self._noting_heads):
            saved, self._scores = elsewhere.saved_arrays(
                losses,
                state.trainable,
                state.non_trainable,
                self._microbatch_shapes(),
                count,
                microstep,
            )
        return _described(saved)

    def attention_scores(self) -> list[list[tuple[tuple[int, ...], str]]]:
        """Returns the scores of attention that `saved_activations` has traced, by block."""
        return [_described(scores) for scores in self._scores]


def _described(arrays: Iterable[jax.ShapeDtypeStruct]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(array.shape), str(array.dtype)) for array in arrays]


# The name under which `runner.engine.registry` finds the engine.
make = PlannedEngine
