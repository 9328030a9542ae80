# ruff: noqa: D102 - an engine overrides what Engine documents
"""Training on a DTensor mesh: devices, placed variables, compiled steps. An adapter knows the kind of model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

from runner import layout
from runner.data.base import Array
from runner.engine.base import HostBatches, LayerOutput, PlacedBatches, PlainModel, Shard, VariableInfo
from runner.engine.calls import PendingCall, example_counts
from runner.engine.common import Engine, splits_examples_alone
from runner.engine.dtensor import canary, packed
from runner.engine.dtensor.adapters import Adapter, make_adapter
from runner.engine.dtensor.arrays import host_values, layout_of, pack, shards, spec_of, unpack
from runner.engine.dtensor.devices import prepare_devices
from runner.engine.dtensor.guards import compile_error, is_compile_error
from runner.engine.dtensor.state import State, make_state
from runner.engine.dtensor.step import COUNTS, Steps
from runner.engine.dtensor.variable_reads import gather_for_use, read_stored
from runner.engine.evaluation import BatchResult
from runner.engine.mappings import map_values, shapes_of
from runner.engine.optim.rules import make_rule
from runner.errors import EngineError, invalid
from runner.host import stages
from runner.layout import Spec
from runner.model.builder import check_trainable

logger = logging.getLogger(__name__)

# DTensor rejects a few compilations in a hundred by mistake (see `_compiled`), so five in a row are a real error.
_COMPILATIONS = 5
_NAME_COLLISION = "different function with the same name"
F = TypeVar("F", bound=Callable[..., object])
Call = Callable[[Mapping[str, tf.Tensor], tf.Tensor], tuple[dict[str, tf.Tensor], tf.Tensor]]


def _optimize(optimizes: bool) -> None:
    """Sets whether grappler optimizes what is compiled next, which takes half of a compilation's time.

    Must be called before the first program: one that ran before the first call is compiled again.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimizes})


def _traced(function: F) -> F:
    traced: F = tf.function(function, autograph=False)
    return traced


class DTensorEngine(Engine):
    """Training on a DTensor mesh; see `runner.engine.common.Engine` for what the methods promise."""

    _state: State
    _library = tf, tf.nest.map_structure, tf.constant
    _steps: Steps

    def _make_devices(self) -> None:
        self._devices = prepare_devices(self._config.mesh)

    @cached_property
    def _adapter(self) -> Adapter:
        config = self._config
        return make_adapter(config.engine.name, config.model, self._data, config.trainer.seed)

    def _make_model(self) -> Mapping[str, tuple[int, ...]]:
        for name, spec in self._array_specs.items():
            # Queries and keys of tokens that one axis shards would be multiplied wrongly, without an error.
            if any(spec[1:]) and not self._data.arrays[name].dtype.startswith("float"):
                problem = f"engine={self._config.engine.name} shards the features of float vectors only"
                raise invalid(f"layout.inputs.{name}", spec, problem=problem, fix="set engine=jax")
        # Before the model: without it tf_keras draws other initial weights than in stock training.
        tf_keras.backend.experimental.enable_tf_random_generator()
        self._plain = self._adapter.plain()
        self._adapter.check(self._plain, pads=self._config.dataset.remainder == "pad")
        self._drawn = self._adapter.variables(self._plain)
        return shapes_of(self._drawn)

    def _make_state(self) -> None:
        self._mesh = dtensor.create_mesh(list(self.axes.items()), devices=self._devices)
        # Before anything else is computed on the mesh, and in the mode that was chosen for it.
        if not self._planning:
            with stages.stage("checking the mesh's arithmetic"):
                canary.check(self._mesh, self.batch_axis, reread=not self._config.engine.combine_all_reduces)
        layouts = {path: layout_of(placement.spec, self._mesh) for path, placement in self.placements.items()}
        self._model = self._adapter.on_mesh(self._plain, self._mesh, layouts)
        variables = self._adapter.variables(self._model)
        for path, variable in variables.items():
            if variable.layout != layouts[path]:
                raise EngineError(f"variable {path} has layout {variable.layout}, but the plan says {layouts[path]}")
        rule = make_rule(self._config.optimizer, tf)
        self._state = make_state(variables, self._model.trainable_variables, rule)
        check_trainable(self._state.trainable, self._config.model)
        self._gather_for_use()
        if not self._planning:
            # They were drawn whole: values that are drawn under a layout depend on the mesh.
            self._state.assign(host_values(self._drawn))
        del self._drawn, self._plain

    def _gather_for_use(self) -> None:
        needed_whole = self.used_whole()
        for path, placement in self.placements.items():
            used_spec = []
            for axis in placement.spec:
                if axis in self._data_axes or path in needed_whole:
                    axis = None
                used_spec.append(axis)
            if tuple(used_spec) != placement.spec:
                gather_for_use(self._state.variables[path], layout_of(used_spec, self._mesh))

    def _make_programs(self) -> None:
        self._layouts = self._stacked_layouts(self._array_specs)
        self._vector = layout_of((None,), self._mesh)
        self._train: Call | None = None
        self._steps = self._steps_on(self._array_specs)
        _optimize(True)
        self._gradients = _traced(self._steps.gradients)
        self._eval = _traced(self._steps.evaluate)
        self._next_logits = _traced(self._steps.next_logits)

    def _stacked_layouts(self, array_specs: Mapping[str, Spec]) -> dict[str, dtensor.Layout]:
        """Returns the layouts of a call's arrays, (K, B, ...)."""
        return {name: layout_of((None, *spec), self._mesh) for name, spec in array_specs.items()}

    def _steps_on(self, array_specs: Mapping[str, Spec]) -> Steps:
        return Steps(
            self._config,
            self._data,
            self._total_steps,
            self._model,
            self._state,
            self._mesh,
            array_specs,
            self._groups(),
        )

    def _groups(self) -> int | None:
        """Returns the number of shares whose sum is a gradient, for `packed.summed`; None: nothing is packed."""
        # `combine_all_reduces=false` asks for one sum per gradient, `reread_slots` for the combiner's bug.
        merges = self._config.engine.combine_all_reduces and not self._config.optimizer.reread_slots
        # The shares of a gradient are those of the batch axis only.
        if not merges or not splits_examples_alone(self._array_specs):
            return None
        elements = 0
        for path in self._state.trainable:
            variable = self._state.variables[path]
            elements += math.prod(variable.shape)
            if variable.dtype != tf.float32 or any(spec_of(variable.layout)):
                return None
        if elements > packed.MOST_ELEMENTS:
            return None
        return self.axes[self.batch_axis] if self.batch_axis else 1

    def place(self, batches: HostBatches) -> PlacedBatches:
        arrays = {name: pack(array, self._layouts[name]) for name, array in batches.arrays.items()}
        return PlacedBatches(arrays, batches.weights, batches.steps)

    def compile(self, batches: PlacedBatches) -> None:
        """Compiles the training program; a ConfigError if model or layout has a form that DTensor lacks."""
        if self._train is not None:
            return
        with self._explained():
            self._train = self._compiled(batches)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns DTensor's error for a program that it can't compile into one line."""
        try:
            yield
        except tf.errors.OpError as error:
            if not is_compile_error(str(error)):
                raise
            logger.error("DTensor could not compile the step:\n%s", error)
            raise compile_error(str(error)) from None

    def _compiled(self, batches: PlacedBatches) -> Call:
        """Returns the training call, compiled by calling it for no step.

        DTensor names the functions that it makes of a loop itself, and in a few compilations of a hundred it rejects
        one as "a different function with the same name". Nothing has run then: a new trace under a new name is tried.
        """
        for left in reversed(range(_COMPILATIONS)):
            call = _traced(self._steps.train)
            try:
                call(batches.arrays, self._numbers(batches, 0, 0))
                break
            except tf.errors.InvalidArgumentError as error:
                self._raise_unless_collision(error, left)
        return call

    def _raise_unless_collision(self, error: tf.errors.InvalidArgumentError, left: int) -> None:
        if _NAME_COLLISION not in str(error) or not left:
            raise error
        logger.warning("compiling again: %s", error.message)

    def _numbers(self, batches: PlacedBatches, rounds: int, first_step: int, rate_factor: float = 1.0) -> tf.Tensor:
        counts = example_counts(batches.weights, 1)
        numbers = np.zeros(COUNTS + len(counts), np.float32)
        numbers[:3] = rounds, first_step, rate_factor
        numbers[COUNTS:] = counts
        return pack(numbers, self._vector)

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> PendingCall[tf.Tensor]:
        """Runs the steps in one call; their number is an input, so that it needs no new trace."""
        numbers = self._numbers(batches, batches.steps, first_step, rate_factor)
        for left in reversed(range(_COMPILATIONS)):
            self.compile(batches)
            assert self._train is not None
            try:
                sums, regularization = self._train(batches.arrays, numbers)
                break
            except tf.errors.InvalidArgumentError as error:
                # DTensor may lower a program once more at its first real call, and fail as in `_compiled`.
                self._raise_unless_collision(error, left)
                self._train = None
        return PendingCall(sums, regularization, batches.weights, batches.steps, 1, unpack)

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        return tf.profiler.experimental.Profile(str(folder))  # type: ignore[no-any-return]

    @property
    def trainable(self) -> Sequence[str]:
        return tuple(self._state.trainable)

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        # This program runs a few times only, so that compiling it fast matters more than running it fast.
        _optimize(False)
        try:
            with self._explained():
                return super().gradients(batches, step)
        finally:
            _optimize(True)

    def _gradient_round(self, batches: PlacedBatches, step: int, index: int) -> list[Array]:
        numbers = self._numbers(batches, index, step)
        return list(map(unpack, self._gradients(batches.arrays, numbers)))

    def _start_evaluation(self, batch: HostBatches) -> BatchResult[tf.Tensor]:
        layouts = self._layouts
        program = self._eval
        if not self._is_divided(batch):
            layouts = self._stacked_layouts(self._replicated_specs)
            program = self._evaluated_whole
        arrays = {name: pack(array, layouts[name]) for name, array in batch.arrays.items()}
        with self._explained():
            return BatchResult(*program(arrays))

    @cached_property
    def _evaluated_whole(self) -> Callable[..., tuple[tf.Tensor, ...]]:
        """The program of an evaluation in which each device computes all examples."""
        return _traced(self._steps_on(self._replicated_specs).evaluate)

    def _start_next_logits(self, batch: HostBatches) -> tf.Tensor:
        with self._explained():
            return self._next_logits(self.place(batch).arrays)

    def _to_host(self, value: tf.Tensor) -> Array:
        return unpack(value)

    def layer_outputs(self) -> list[LayerOutput]:
        return self._adapter.layer_outputs(self._microbatch_size)

    def used_whole(self) -> set[str]:
        return self._adapter.whole(self._model)

    def variables(self) -> dict[str, VariableInfo]:
        infos = {}
        for path, variable in self._state.saved.items():
            shape = tuple(variable.shape)
            spec = spec_of(variable.layout)
            shard_shape = layout.Placement(path, shape, spec, None).shard_shape(self.axes)
            shard_bytes = math.prod(shard_shape) * variable.dtype.size
            infos[path] = VariableInfo(shape, variable.dtype.name, spec, shard_bytes)
        return infos

    def state(self) -> dict[str, Array]:
        return map_values(unpack, self._state.saved)

    def shards(self) -> dict[str, list[Shard]]:
        return {path: shards(read_stored(variable)) for path, variable in self._state.saved.items()}

    def _assign(self, values: Mapping[str, Array]) -> None:
        self._state.assign(values)

    def plain_model(self, values: Mapping[str, Array] | None = None) -> PlainModel:
        if values is None:
            values = map_values(unpack, self._state.variables)
        return self._adapter.exported(values)


make = DTensorEngine  # see `runner.engine.registry`
