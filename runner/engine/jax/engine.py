# ruff: noqa: D102 - an engine overrides what Engine documents
"""The engine `jax`: a Keras 3 model on the JAX backend, placed by jax.sharding and stepped by one jitted function.

Every variable gets a NamedSharding from the resolved plan; XLA's partitioner inserts the communication. Shapes: K
steps per call, B global batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.stages import Compiled, Lowered

from runner.cluster.team import current
from runner.config.schema import LayoutConfig
from runner.data.base import ROW, WEIGHT, Array, ArraySpec, DataSource
from runner.engine.base import (
    Collective,
    HostBatches,
    LayerOutput,
    PlacedBatches,
    PlainModel,
    ProgramCost,
    Shard,
    VariableInfo,
)
from runner.engine.calls import PendingCall, cut, example_counts
from runner.engine.common import Engine, splits_examples_alone
from runner.engine.evaluation import BatchResult
from runner.engine.jax import devices, environment, precision, private, processes, randomness, state, updates
from runner.engine.jax.adapter import Keras3Factory, check_model, check_padding, input_shapes, outputs_of, set_values
from runner.engine.jax.collectives import collectives
from runner.engine.jax.compile import (
    FOR_CPUS,
    TO_READ,
    Options,
    compiled,
    loops_on_device,
    program_cost,
    traced_gradients,
)
from runner.engine.jax.layers.on_cpus import adopt
from runner.engine.jax.names import Names
from runner.engine.jax.partitioning import MeshLayout, Partitioning, partition, sharding, unsplit, with_own_map
from runner.engine.jax.shards import cached, place_first, shards, variable_info
from runner.engine.jax.step import Arrays, Evaluated, Rounds, Step, Weights, batch_shapes, call_numbers
from runner.engine.mappings import keys_by_id, map_values, shapes_of
from runner.engine.optim import norms
from runner.engine.registry import KERAS_3
from runner.errors import EngineError
from runner.layout import Spec
from runner.layout import mesh as runner_mesh
from runner.layout.paths import ema_path

T = TypeVar("T")

# Seconds of compilation from which on a program is kept in the cache on disk. The step of an MLP compiles in 0.4 s and
# is read back in 0.04 s, so JAX's default of 1 s would leave out small models.
_LEAST_CACHED_S = 0.1


class JaxEngine(Engine):
    """Keras 3 on JAX; see `runner.engine.common.Engine` for what the methods promise."""

    # None for a custom step, which has several.
    _model: Any
    # Trees of the structure of the state: paths, and shapes with shardings. Those of a custom step are dicts by path.
    _paths: Any
    _kinds: Any
    _state: Any
    counts_cost = True
    _library = jnp, jax.tree.map, jnp.asarray

    def _make_devices(self) -> None:
        self._programs: dict[tuple[tuple[str, tuple[int, ...]], ...], Compiled] = {}
        self._split: Arrays | None = None
        self._on_cpus = runner_mesh.device_kind(self._config.mesh) == "cpu"
        self._mesh = self._make_mesh()
        # A batch's arrays, (B, ...), and those of a call, (K, B, ...). The rows of a cached split are placed as the
        # examples that they name.
        self._specs = self._array_specs | {ROW: self._array_specs[WEIGHT]}
        self._array_shardings = map_values(self._sharding, self._specs)
        self._stacked_shardings = {name: self._sharding((None, *spec)) for name, spec in self._specs.items()}
        self._replicated = self._sharding(())
        self._gather = jax.jit(lambda values: values, out_shardings=self._replicated)

    def _make_mesh(self) -> Mesh:
        if self._config.engine.compilation_cache:
            jax.config.update("jax_compilation_cache_dir", environment.cache_folder())
            jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_CACHED_S)
        return devices.make_mesh(self._config.mesh)

    def _sharding(self, spec: Spec) -> NamedSharding:
        return sharding(self._mesh, spec)

    @cached_property
    def _factory(self) -> Keras3Factory:
        config = self._config
        return Keras3Factory(config.model, self._data, config.trainer.seed, config.engine.precision)

    def _make_model(self) -> Mapping[str, tuple[int, ...]]:
        self._model, self._initial = self._factory.build_for_mesh()
        self._check_model()
        if self._on_cpus and splits_examples_alone(self._array_specs):
            adopt(self._model)
        self._names = Names(self._model)
        return shapes_of(self._names.variables)

    def _check_model(self) -> None:
        pads = self._config.dataset.remainder == "pad"
        check_model(self._model, self._config.model, self._data, pads=pads)

    def _layout(self) -> LayoutConfig:
        config = self._config.layout
        if not config.from_model:
            return config
        return with_own_map(config, self._model, self._names.variables, self.axes)

    def _make_state(self) -> None:
        """Orders the variables as Keras wants them, and draws initial values."""
        variables = self._names.variables
        paths = keys_by_id(variables)
        # States of random generators have no path.
        others = [id(variable) for variable in self._model.non_trainable_variables]
        non_trainable = [paths[key] for key in others if key in paths]
        self._trainable = [paths[id(variable)] for variable in self._model.trainable_variables]
        self._update_rule = updates.make(
            self._config.optimizer, self._trainable, self._model.trainable_variables, self._mesh
        )
        kinds = precision.set_dtypes(self._model, variables, self._config.engine.state)
        placed_kinds = self._placed_kinds(kinds, map_values(lambda placement: placement.spec, self.placements))
        self._paths, self._kinds = state.trees(
            self._trainable,
            non_trainable,
            placed_kinds,
            self._update_rule.slots,
            keeps_ema=self._config.optimizer.ema.decay is not None,
            accumulates=self._microbatches > 1,
        )
        if self._planning:
            # A plan compiles the step for shapes: nothing is drawn, and no device memory is used.
            self._state = self._kinds
            return
        first = place_first(self._initial, placed_kinds)
        if self._config.dataset.remainder == "pad":
            check_padding(
                self._model,
                self._microbatches,
                self._data,
                lambda: map_values(np.asarray, self._run(self._gather, first)),
            )
        rule = self._update_rule
        self._state = state.begin(first, self._paths, self._kinds, rule.slots, rule.first_slots)

    def _placed_kinds(
        self, kinds: Mapping[str, jax.ShapeDtypeStruct], specs: Mapping[str, Spec]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and dtypes by path with the shardings of their specs."""
        placed = {}
        for path, kind in kinds.items():
            placed[path] = jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=self._sharding(specs[path]))
        return placed

    def _assign(self, values: Mapping[str, Array]) -> None:
        # The state's memory is released array by array, and the last program's results are its arrays.
        RUNNING.wait()
        self._state = state.placed(values, self._paths, self._kinds, self._state)

    def _make_programs(self) -> None:
        step = self._make_step()
        shapes = self._microbatch_shapes()
        trace = traced_gradients(step, self._state, self._trainable, self._config.model, shapes)
        by_example = self._array_shardings[WEIGHT]
        losses = self._make_training(step, trace)
        evaluated = (losses, self._replicated, by_example, self._replicated)
        self._evaluated = jax.jit(step.evaluated, out_shardings=evaluated)
        self._next_logits = jax.jit(step.next_logits, out_shardings=self._replicated)
        weights = self._kinds.trainable, self._kinds.non_trainable
        self._whole_gradients = jax.jit(step.whole_gradients, out_shardings=state.shardings(weights))

    def _make_training(self, step: Rounds[Any], trace: jax.core.Jaxpr) -> NamedSharding:
        """Prepares what every training needs; returns the sharding of an evaluation's losses (B,)."""
        self._loops = loops_on_device(trace, self._config.engine.loop, on_cpus=self._on_cpus)
        # Numbers of single examples stay where they are computed, unless several processes must read them: then every
        # device gets all of them.
        losses = self._array_shardings[WEIGHT]
        sums = self._stacked_shardings[WEIGHT] if self._loops else losses
        if not self._replicated.is_fully_addressable:
            losses = self._replicated
            sums = self._replicated
        train: Callable[..., object] = step.many if self._loops else step.step
        # Results are pinned: XLA would otherwise choose other shardings for the new state than for the old one.
        results = (state.shardings(self._kinds), sums, self._replicated)
        self._train = jax.jit(train, donate_argnums=0, out_shardings=results)
        return losses

    def _make_step(self) -> Step:
        self._drawn = randomness.unmoved(self._model)
        if not self._planning:
            inputs = input_shapes(self._data, self._microbatch_size)
            self._drawn = randomness.of(self._model, inputs, self._config.model)
        self._functions = self._step_on(self._partitioning())
        return self._functions

    def _step_on(self, partitioning: Partitioning) -> Step:
        config = self._config
        return Step(
            self._model,
            config.trainer,
            config.optimizer,
            self._data.task,
            total_steps=self._total_steps,
            device=runner_mesh.device_kind(config.mesh),
            randomness=self._drawn,
            partitioning=partitioning,
            update_rule=self._update_rule,
        )

    def _partitioning(self) -> Partitioning:
        on = MeshLayout(self._mesh, self._config.layout, self.placements, self._specs)
        return partition(on, self._model, self._trainable, self._data, state=state.shardings(self._kinds))

    def _microbatch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        arrays = {**self._data.arrays, WEIGHT: ArraySpec((), "float32")}
        return batch_shapes(arrays, self._microbatch_size)

    @property
    def caches(self) -> bool:
        return self._split is not None

    def cache_on_device(self, source: DataSource) -> None:
        """Keeps a split's arrays on every device. All examples, their dims split as a batch's are."""
        shardings = {}
        for name in self._data.arrays:
            _, *example_spec = self._array_specs[name]
            shardings[name] = self._sharding((None, *example_spec))
        self._split = cached(source, shardings, self._config.engine.data, self._config.mesh, planning=self._planning)

    def place(self, batches: HostBatches) -> PlacedBatches:
        return self._placed(batches, self._microbatches)

    def _placed(self, batches: HostBatches, microbatches: int) -> PlacedBatches:
        arrays = processes.placed_all(cut(batches, microbatches), self._stacked_shardings)
        return PlacedBatches(arrays, batches.weights, batches.steps)

    def _arguments(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> tuple[object, ...]:
        """Returns a step's arguments after the state. These are what the devices keep, the arrays, and the numbers."""
        split = None
        if ROW in batches.arrays:
            split = self._split
        counts = example_counts(batches.weights, self._microbatches)
        rounds = batches.steps * self._microbatches
        return split, batches.arrays, call_numbers(rounds, first_step, rate_factor, counts)

    def compile(self, batches: PlacedBatches) -> None:
        self._compiled(batches)

    def _compiled(self, batches: PlacedBatches) -> Compiled:
        shapes = tuple(shapes_of(batches.arrays).items())
        if shapes not in self._programs:
            arguments = [self._state, *self._arguments(batches, 0)]
            if not self._loops:
                # A program of one round takes the round's number.
                arguments.append(np.int32(0))
            self._programs[shapes] = compiled(self._lowered(arguments), self._compiler_options())
        return self._programs[shapes]

    def _lowered(self, arguments: Sequence[object]) -> Lowered:
        return self._train.lower(*arguments)

    def _compiler_options(self) -> Options:
        if self._planning:
            return TO_READ
        if self._on_cpus:
            return FOR_CPUS
        return {}

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> PendingCall[jax.Array]:
        """Runs the steps in one program, or one after another. It does not wait for the last program to end."""
        program = self._compiled(batches)
        arguments = self._arguments(batches, first_step, rate_factor)
        if self._loops:
            self._state, sums, regularization = self._run(program, self._state, *arguments)
            return self._pending(sums, regularization, batches)
        rows: dict[str, list[jax.Array]] = defaultdict(list)
        regularizations: list[jax.Array] = []
        for index in range(batches.steps * self._microbatches):
            self._state, round_sums, regularization = self._run(program, self._state, *arguments, np.int32(index))
            for name, row in round_sums.items():
                rows[name].append(row)
            regularizations.append(regularization)
        return self._pending(rows, regularizations, batches)

    def _pending(
        self,
        sums: Mapping[str, jax.Array | Sequence[jax.Array]],
        regularization: jax.Array | Sequence[jax.Array],
        batches: PlacedBatches,
    ) -> PendingCall[jax.Array]:
        return PendingCall(
            sums,
            regularization,
            batches.weights,
            batches.steps,
            self._microbatches,
            to_host=self._to_host,
            scalars=norms.names(self._config.optimizer),
        )

    def _run(self, program: Callable[..., T], *arguments: object) -> T:
        """Starts a program. If several devices share a CPU's threads, after the one before has ended."""
        if not self._on_cpus or self._mesh.size == 1:
            return program(*arguments)
        with current().waiting():
            RUNNING.wait()
            results = program(*arguments)
        RUNNING.results = results
        return results

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Traces what runs in the context. An XSpace for TensorBoard, and JSON for Perfetto."""
        traced: AbstractContextManager[None] = jax.profiler.trace(folder)
        return traced

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns the first batch's whole gradients. Batch statistics are put back as they were."""
        before = self._state
        try:
            return super().gradients(batches, step)
        finally:
            self._state = before

    def _gradient_round(self, batches: PlacedBatches, step: int, index: int) -> Sequence[Array]:
        arguments = self._arguments(batches, step)
        gradients, weights = self._run(self._whole_gradients, self._state, *arguments, np.int32(index))
        # The next micro-batch may read batch statistics that this one changed.
        self._state = self._state._replace(non_trainable=weights)
        return list(map(self._to_host, gradients))

    def _to_host(self, value: jax.Array) -> Array:
        # Parts of other processes are gathered by a program.
        if not (value.is_fully_addressable or value.is_fully_replicated):
            value = self._run(self._gather, value)
        with current().waiting():
            return np.asarray(value)

    @property
    def _weights(self) -> Weights:
        """Returns the weights that an evaluation uses. Moving averages if the run keeps them, and the others."""
        return self._state.ema or self._state.trainable, self._state.non_trainable

    def _start_evaluation(self, batch: HostBatches) -> BatchResult[jax.Array]:
        shardings = self._stacked_shardings
        program = self._evaluated
        if not self._is_divided(batch):
            shardings = {name: self._sharding((None, *spec)) for name, spec in self._replicated_specs.items()}
            program = self._evaluated_whole
        return BatchResult(*self._run(program, self._weights, processes.placed_all(cut(batch, 1), shardings)))

    @cached_property
    def _evaluated_whole(self) -> Callable[..., Evaluated]:
        shardings = map_values(self._sharding, self._replicated_specs)
        step = self._step_on(unsplit(self._partitioning(), shardings))
        program: Callable[..., Evaluated] = jax.jit(step.evaluated, out_shardings=self._replicated)
        return program

    def _start_next_logits(self, batch: HostBatches) -> jax.Array:
        return self._run(self._next_logits, self._weights, self._placed(batch, 1).arrays)

    @property
    def trainable(self) -> tuple[str, ...]:
        return tuple(self._trainable)

    @property
    def program(self) -> Compiled:
        """Returns the compiled training program of one device; raises EngineError if nothing was compiled yet."""
        if not self._programs:
            raise EngineError("the step's program was requested before it was compiled")
        return next(iter(self._programs.values()))

    def collectives(self) -> list[Collective]:
        of_microbatch = collectives(
            self.program.as_text(),
            self.axes,
            self.placements,
            self._layer_paths(),
            self._trainable,
            self._data_axes,
            looped=self._loops,
        )
        of_step = []
        for each in of_microbatch:
            count = each.count * self._microbatches
            of_step.append(replace(each, count=count, bytes=each.bytes * self._microbatches))
        return of_step

    def _layer_paths(self) -> list[str]:
        return list(filter(None, self._names.layers.values()))

    def program_cost(self) -> ProgramCost | None:
        return program_cost(self.program, self._microbatches)

    def layer_outputs(self) -> list[LayerOutput]:
        return outputs_of(self._model, input_shapes(self._data, self._microbatch_size))

    def used_whole(self) -> set[str]:
        """Returns nothing: XLA splits every operation."""
        return set()

    def variables(self) -> dict[str, VariableInfo]:
        return map_values(variable_info, self._by_path())

    def _by_path(self) -> dict[str, Any]:
        return state.by_path(self._paths, self._state)

    def state(self) -> dict[str, Array]:
        """Returns whole arrays of variables and slots; random generators are functions of the step, without state."""
        # Copied, as the next step donates the memory that a view would show.
        return {path: np.array(self._to_host(array)) for path, array in self._by_path().items()}

    def shards(self) -> dict[str, list[Shard]]:
        return map_values(shards, self._by_path())

    def plain_model(self, values: Mapping[str, Array] | None = None) -> PlainModel:
        model, variables = self._stock_model()
        if values is None:
            arrays = self._by_path()
            values = {path: self._to_host(arrays.get(ema_path(path), arrays[path])) for path in variables}
        # Copies: the next step donates the state.
        set_values(variables, values)
        return PlainModel(model, model, KERAS_3)

    def _stock_model(self) -> tuple[keras.Model, Mapping[str, keras.Variable]]:
        """Returns the model that a run exports, and its variables by path."""
        model, _ = self._factory.build_for_mesh()
        return model, Names(model).variables

    def saving(self) -> AbstractContextManager[None]:
        return private.tensorflow_unimported()


# The name under which `runner.engine.registry` finds the engine.
make = JaxEngine


class RunningProgram:
    """The last program that this process started on several CPU devices, whichever engine started it.

    Virtual devices share XLA's threads, and two programs at a time would need twice as many, see
    `runner.engine.jax.environment.threads`. A second engine in the process, as in a comparison, shares them too.
    """

    results: object = None

    def wait(self) -> None:
        """Waits for the program to end, and releases its results."""
        jax.block_until_ready(self.results)
        self.results = None


RUNNING = RunningProgram()
