"""The engine `jax` for devices that are not here: it traces and compiles, and never runs a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Lowered

from runner.engine.base import HostBatches, PlacedBatches
from runner.engine.calls import cut
from runner.engine.jax import elsewhere
from runner.engine.jax.compile import Options
from runner.engine.jax.engine import JaxEngine


class PlannedEngine(JaxEngine):
    """Keras 3 on JAX for a plan: by arithmetic, or compiled by the compiler of the config's hardware."""

    def _make_mesh(self) -> Mesh:
        return elsewhere.make_mesh(self._config)

    def _make_programs(self) -> None:
        if self._config.plan.compiler == elsewhere.ARITHMETIC:
            # Nothing is compiled.
            self._make_step()
            return
        with elsewhere.attention_of(self._config):
            super()._make_programs()

    def place(self, batches: HostBatches) -> PlacedBatches:
        """Returns the shapes of a call's arrays with their shardings."""
        arrays: dict[str, Any] = {}
        for name, array in cut(batches, self._microbatches).items():
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            arrays[name] = jax.ShapeDtypeStruct(array.shape, dtype, sharding=self._stacked_shardings[name])
        return PlacedBatches(arrays, batches.weights, batches.steps)

    def _lowered(self, arguments: Sequence[object]) -> Lowered:
        with elsewhere.attention_of(self._config):
            return super()._lowered(arguments)

    def _compiler_options(self) -> Options:
        return {}

    def saved_activations(self, *, offloaded: bool = False) -> list[tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each whole array that a microbatch's forward pass keeps for the backward pass.

        Args:
          offloaded: those in host memory, instead of those in device memory.
        """
        count = jax.ShapeDtypeStruct((), np.float32)
        microstep = jax.ShapeDtypeStruct((), np.int32)
        step = self._functions

        def losses(trainable: list[jax.Array], *arguments: Any) -> Any:
            return step.losses(step.used_weights(trainable), *arguments)

        state = self._state
        with elsewhere.attention_of(self._config):
            saved = elsewhere.saved_arrays(
                losses,
                state.trainable,
                state.non_trainable,
                self._shapes_with_teachers(),
                count,
                microstep,
                offloaded=offloaded,
            )
        return [(tuple(array.shape), str(array.dtype)) for array in saved]


# The name under which `runner.engine.registry` finds the engine.
make = PlannedEngine
