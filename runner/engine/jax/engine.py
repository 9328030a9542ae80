"""The engine `jax`: a Keras 3 model on the JAX backend, placed by jax.sharding and stepped by one jitted function.

Every variable gets a NamedSharding from the resolved plan; XLA's partitioner inserts the communication. Shapes: K
steps a call, B global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Compiled

from runner.config.schema import LayoutConfig, RunConfig
from runner.data.base import ROW, WEIGHT, Array, ArraySpec, DataSource
from runner.engine.base import Collective, HostBatches, LayerOutput, PlacedBatches, ProgramCost, Shard, VariableInfo
from runner.engine.calls import PendingCall, cut, example_counts
from runner.engine.common import MeshEngine
from runner.engine.evaluation import BatchResult
from runner.engine.jax import environment, mesh, precision, private, processes, randomness
from runner.engine.jax.adapter import Keras3Factory, check_model, model_inputs
from runner.engine.jax.collectives import collectives
from runner.engine.jax.compile import FOR_CPUS, TO_READ, choose, compiled, program_cost
from runner.engine.jax.layer_outputs import layer_outputs
from runner.engine.jax.layers.adopted import adopt
from runner.engine.jax.layers.batch_norm import Parts
from runner.engine.jax.layers.chunked_loss import TokenParts
from runner.engine.jax.layers.kernel_gradient import spread_over, unused_axes
from runner.engine.jax.names import Names
from runner.engine.jax.own_map import with_own_map
from runner.engine.jax.probe import check_kept
from runner.engine.jax.randomness import Randomness
from runner.engine.jax.shards import cached, on_host, pieces, shards, variable_info
from runner.engine.jax.state import State, state_tree
from runner.engine.jax.step import Arrays, Shardings, Step, Weights
from runner.errors import EngineError
from runner.layout import Spec, transformers
from runner.layout import mesh as runner_mesh
from runner.layout.axes import data_axes
from runner.optim import rules
from runner.optim.paths import ema_path
from runner.processes.team import current
from runner.task.base import DataSpec
from runner.task.language_model import HIDDEN

T = TypeVar("T")

# What the last program of this process gives that ran on several CPU devices.
_running: list[object] = []


class JaxEngine(MeshEngine[jax.Array]):
    """Keras 3 on JAX; see `runner.engine.base.Engine` for what the methods promise."""

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int, *, planning: bool = False) -> None:
        super().__init__(config, data, total_steps, planning=planning)
        self._programs: dict[tuple[tuple[str, tuple[int, ...]], ...], Compiled] = {}
        self._split: Arrays | None = None
        self._built_whole = False
        # No mesh axis splits an example.
        self._whole_examples = not any(any(spec[1:]) for spec in self._array_specs.values())

    def build(self) -> None:
        """Makes devices, mesh, model and slots, and places them, see the base class.

        A model whose code holds on to what it computed as it was built, where nobody sees it, is built once more.
        """
        try:
            super().build()
        except jax.errors.UnexpectedTracerError:
            if self._built_whole:
                raise
            self._built_whole = True
            super().build()

    def _make_devices(self) -> None:
        if self._config.engine.compilation_cache:
            jax.config.update("jax_compilation_cache_dir", environment.cache_folder())
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        self._mesh = mesh.configure(self._config.mesh)
        specs = self._array_specs | {ROW: self._array_specs[WEIGHT]}
        self._lies = {name: self._sharding(spec) for name, spec in specs.items()}  # a batch's arrays
        self._lie_stacked = {name: self._sharding((None, *spec)) for name, spec in specs.items()}
        self._whole = self._sharding(())

    def _sharding(self, spec: Spec) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def _make_model(self) -> Mapping[str, tuple[int, ...]]:
        config = self._config
        self._factory = Keras3Factory(config.model, self._data, config.trainer.seed, config.engine.precision)
        if self._planning:
            self._model = self._factory.traced(whole=self._built_whole)
        else:
            self._model, self._initial = self._factory.begin(whole=self._built_whole)
        check_model(self._model, config, self._data)
        on_cpu = runner_mesh.device_kind(config.mesh) == "cpu"
        adopt(self._model, on_cpu=on_cpu, whole_images=self._whole_examples)
        self._names = Names(self._model)
        return {path: tuple(variable.shape) for path, variable in self._names.variables.items()}

    def _layout(self) -> LayoutConfig:
        config = self._config.layout
        if not config.from_model:
            return config
        return with_own_map(config, self._model, self._names.variables, self._axes)

    def _make_state(self) -> None:
        """Orders the variables as Keras wants them, and makes what they begin with, each part where it lies."""
        variables = self._names.variables
        paths = {id(variable): path for path, variable in variables.items()}
        seeds = randomness.seed_indices(self._model)
        others = [v for i, v in enumerate(self._model.non_trainable_variables) if i not in seeds]
        self._trainable = [paths[id(variable)] for variable in self._model.trainable_variables]
        self._tree = state_tree(
            self._trainable,
            [paths[id(variable)] for variable in others],
            {path: self._sharding(placement.spec) for path, placement in self.placements.items()},
            rules.make_rule(self._config.optimizer, jnp).slots,
            keeps_ema=self._config.optimizer.ema.decay is not None,
            accumulates=self._microbatches > 1,
        )
        self._kinds = precision.hold(self._model, variables, self._config.engine.state)
        if self._planning:
            self._state: State[jax.Array] = self._tree.shapes(self._kinds)
            return
        shapes = self._tree.by_path(self._tree.shapes(self._kinds))
        first = self._initial.place({path: shapes[path] for path in variables})
        check_kept(self._model, self._config, self._data, lambda: processes.readable(first, self._whole))
        self._state = self._tree.begun(first, self._kinds)

    def _assign(self, values: Mapping[str, Array]) -> None:
        jax.block_until_ready(_running)
        _running.clear()  # its arrays are let go of
        self._state = self._tree.place(values, self._kinds, self._state)

    def _make_programs(self) -> None:
        self._functions = step = Step(
            self._model,
            self._config,
            self._data.task,
            self._total_steps,
            self._randomness(),
            Shardings(
                self._tree.shardings,
                self._lies,
                self._lie_stacked[WEIGHT],
                self._gathered_for_logits(),
                self._heads_axis(),
            ),
            spread_over(self._mesh) if self._copies_images() else None,
            self._batch_parts(),
            self._token_parts(),
        )
        self._mode = choose(step, self._state, self._trainable, self._config, self._microbatch_shapes())
        looped = self._mode.loop_on_device
        alone = self._whole.is_fully_addressable  # else each device gets whole what the hosts read of a call
        sums = (self._lie_stacked if looped else self._lies)[WEIGHT] if alone or not looped else self._whole
        placed = (self._tree.shardings, sums, self._whole)
        self._train = jax.jit(step.many if looped else step.step, donate_argnums=0, out_shardings=placed)
        examples = self._lies[WEIGHT]
        seen = examples if alone else self._whole
        self._evaluated = jax.jit(step.evaluated, out_shardings=(seen, self._whole, examples))
        self._outputs = jax.jit(step.outputs)
        self._judged = jax.jit(step.judged, static_argnums=(2, 3), out_shardings=(seen, self._whole))
        self._next_logits = jax.jit(step.next_logits, out_shardings=self._whole)
        self._stack = jax.jit(jnp.stack, out_shardings=self._whole)
        self._gather = jax.jit(lambda values: values, out_shardings=self._whole)
        weights = self._tree.shardings.trainable, self._tree.shardings.non_trainable
        self._whole_gradients = jax.jit(step.whole_gradients, out_shardings=weights)

    def _copies_images(self) -> bool:
        """Tells whether an axis splits devices and not what a convolution may take."""
        specs = [self._array_specs[name] for name in self._data.inputs]
        convolved = [spec for spec in specs if len(spec) > 2] or [self._array_specs[WEIGHT]]
        return any(unused_axes(self._axes, spec) for spec in convolved)

    def _batch_parts(self) -> Parts | None:
        """Returns how the mesh splits a batch's examples, where it splits nothing else of them."""
        (axis,) = self._array_specs[WEIGHT]
        return Parts(self._axes[axis], self._gathered) if axis and self._whole_examples else None

    def _token_parts(self) -> TokenParts:
        """Returns how the mesh splits examples, tokens along the first dim of the first input, and logits."""
        spec = self._array_specs[self._data.task.input_names[0]]
        batch, sequence = (*spec, None)[:2]

        def held(array: jax.Array, at: int) -> jax.Array:
            free = PartitionSpec.UNCONSTRAINED
            rest = [free] * (array.ndim - at - 2)
            return jax.lax.with_sharding_constraint(array, self._sharding((*[free] * at, batch, sequence, *rest)))

        examples, tokens = (self._axes[axis] if axis else 1 for axis in (batch, sequence))
        return TokenParts(examples, tokens, held, self._vocabulary_parts())

    def _heads_axis(self) -> str | None:
        """Returns the axis that splits the heads of all attentions alike; None where they are whole or differ."""
        splits = data_axes(self._config.layout, self._axes)
        shapes = {path: placement.shape for path, placement in self.placements.items()}
        found = {
            self.placements[path].spec[role.dim]
            for path, role in transformers.read(shapes).roles.items()
            if "heads" in role.noun and role.dim is not None and not role.adapter
        }
        axis = found.pop() if len(found) == 1 else None
        return axis if axis is not None and axis not in splits else None

    def _gathered_for_logits(self) -> dict[int, NamedSharding]:
        """Returns how tables and heads of the vocabulary lie when logits are made of them, of those split twice.

        Of a head (D, V) with D stored over `batch` and V over `model` XLA else leaves D in parts, gathers the examples
        instead and sums whole logits over `batch`, which are the largest array of the step. A loss in chunks holds the
        head in place by itself; of a head that is split once XLA gathers the head.
        """
        made = getattr(self._model, "output", None) if private.is_functional(self._model) else None
        if isinstance(made, Mapping) and HIDDEN in made:
            return {}
        splits = data_axes(self._config.layout, self._axes)
        shapes = {path: placement.shape for path, placement in self.placements.items()}
        roles = transformers.read(shapes).roles
        found = {}
        for index, path in enumerate(self._trainable):
            role = roles.get(path)
            spec = self.placements[path].spec
            used = {axis for axis in spec if axis is not None and self._axes[axis] > 1}
            if role is not None and role.noun == transformers.VOCABULARY and used & splits and used - splits:
                found[index] = self._sharding(tuple(None if axis in splits else axis for axis in spec))
        return found

    def _vocabulary_parts(self) -> int:
        """Returns in how many parts the mesh splits the logits of a token, by the tables and heads of the vocabulary.

        The least, where these differ: which of them makes the logits is the model's business.
        """
        shapes = {path: placement.shape for path, placement in self.placements.items()}
        splits = data_axes(self._config.layout, self._axes)
        parts = []
        for path, role in transformers.read(shapes).roles.items():
            if role.noun == transformers.VOCABULARY and role.dim is not None and not role.adapter:
                axis = self.placements[path].spec[role.dim]
                parts.append(self._axes[axis] if axis is not None and axis not in splits else 1)
        return min(parts, default=1)

    def _gathered(self, array: jax.Array) -> jax.Array:
        """Holds a traced array to be whole along its first dim; nothing is said of the others."""
        spec = None, *[PartitionSpec.UNCONSTRAINED] * (array.ndim - 1)
        return jax.lax.with_sharding_constraint(array, self._sharding(spec))

    def _microbatch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        arrays = {**self._data.arrays, WEIGHT: ArraySpec((), "float32")}
        return {
            name: jax.ShapeDtypeStruct((self._microbatch_size, *spec.shape), jax.dtypes.canonicalize_dtype(spec.dtype))
            for name, spec in arrays.items()
        }

    def _randomness(self) -> Randomness:
        if self._planning:
            return randomness.unmoved(self._model)
        size = self._microbatch_size
        batch = model_inputs(self._data, lambda spec: jax.ShapeDtypeStruct((size, *spec.shape), spec.dtype))
        return randomness.of(self._model, batch, self._config.model)

    @property
    def caches(self) -> bool:
        """Returns whether the devices keep a split's arrays."""
        return self._split is not None

    def cache_on_device(self, source: DataSource) -> None:
        """Keeps a split's arrays on every device, split as a batch's are but for their first dim."""
        lie = {name: self._sharding((None, *self._array_specs[name][1:])) for name in self._data.arrays}
        self._split = cached(source, lie, self._config, planning=self._planning)

    def place(self, batches: HostBatches) -> PlacedBatches:
        """Places a call's arrays, or the rows of what is cached, by micro-batches."""
        return self._placed(batches, self._microbatches)

    def _placed(self, batches: HostBatches, microbatches: int) -> PlacedBatches:
        arrays = cut(batches, microbatches)
        placed = processes.placed_all(arrays, self._lie_stacked)
        return PlacedBatches(placed, batches.weights, batches.steps)

    def _arguments(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> tuple[object, ...]:
        """Returns what a step takes beside the state: the cached split, or None; arrays; numbers."""
        counts = example_counts(batches.weights, self._microbatches)
        whole = np.asarray([batches.steps * self._microbatches, first_step], np.int32)
        numbers = np.concatenate([[rate_factor], counts]).astype(np.float32)  # handed in as their bits
        split = self._split if ROW in batches.arrays else None
        return split, batches.arrays, np.concatenate([whole, numbers.view(np.int32)])

    def compile(self, batches: PlacedBatches) -> None:
        """Makes the training program for batches of these shapes, from disk where an earlier run left it."""
        self._compiled(batches)

    def _compiled(self, batches: PlacedBatches) -> Compiled:
        shapes = tuple((name, tuple(array.shape)) for name, array in batches.arrays.items())
        if shapes not in self._programs:
            number = () if self._mode.loop_on_device else (np.int32(0),)
            lowered = self._train.lower(self._state, *self._arguments(batches, 0), *number)
            options = TO_READ if self._planning else FOR_CPUS if self._mode.on_cpus else {}
            self._programs[shapes] = compiled(lowered, options)
        return self._programs[shapes]

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> PendingCall[jax.Array]:
        """Runs the steps in one program, or one after another, and does not wait for the last program to end."""
        program = self._compiled(batches)
        arguments = self._arguments(batches, first_step, rate_factor)
        told = batches.weights, batches.steps, self._microbatches, self._to_host
        if self._mode.loop_on_device:
            self._state, sums, regularization = self._run(program, self._state, *arguments)
            return PendingCall(sums, regularization, *told)
        rows: list[tuple[Arrays, jax.Array]] = []
        for index in range(batches.steps * self._microbatches):
            self._state, *row = self._run(program, self._state, *arguments, np.int32(index))
            rows.append((row[0], row[1]))
        sums = {name: self._stacked([row[name] for row, _ in rows]) for name in rows[0][0]}
        return PendingCall(sums, [regularization for _, regularization in rows], *told)

    def _stacked(self, rows: Sequence[jax.Array]) -> jax.Array | Sequence[jax.Array]:
        """Returns rows (B,) of several processes as one array of them and of padding, so that one gather reads it."""
        if processes.is_here(rows[0]):
            return rows
        length = 1 << (len(rows) - 1).bit_length()  # few lengths, as each is compiled
        return self._run(self._stack, [*rows, *[rows[-1]] * (length - len(rows))])

    def _run(self, program: Callable[..., T], *arguments: object) -> T:
        """Starts a program; where several devices share a CPU's threads, when the one before has ended.

        Two at a time would need twice the threads, see `environment.threads`.
        """
        if not self._mode.on_cpus or self._mesh.size == 1:
            return program(*arguments)
        with current().waiting():
            jax.block_until_ready(_running)
            found = program(*arguments)
        _running[:] = [found]
        return found

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Traces what runs in the context: an XSpace, which TensorBoard reads, and JSON, which Perfetto reads."""
        traced: AbstractContextManager[None] = jax.profiler.trace(folder)
        return traced

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns the first batch's whole gradients; batch statistics are put back as they were."""
        before = self._state
        try:
            return super().gradients(batches, step)
        finally:
            self._state = before

    def _gradient_round(self, batches: PlacedBatches, step: int, index: int) -> Sequence[Array]:
        arguments = self._state, *self._arguments(batches, step), np.int32(index)
        found, weights = self._run(self._whole_gradients, *arguments)
        self._state = self._state._replace(non_trainable=weights)  # a later micro-batch may read them
        return [self._to_host(gradient) for gradient in found]

    def _to_host(self, value: jax.Array) -> Array:
        (brought,) = self._brought([value])
        with current().waiting():
            return np.asarray(brought)

    def _brought(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Returns arrays that this process can read whole; what other processes hold is gathered, by one program."""
        if all(processes.is_here(value) for value in values):
            return values
        return self._run(self._gather, list(values))

    @property
    def _weights(self) -> Weights:
        return self._state.ema or self._state.trainable, self._state.non_trainable

    def _start_evaluation(self, batch: HostBatches, examples: int | None) -> BatchResult[jax.Array]:
        arrays = self._placed(batch, 1).arrays
        if not self._data.task.reads_batch:
            return BatchResult(*self._run(self._evaluated, self._weights, arrays))
        # In two programs: the number of examples is a constant of the second, and the model is in the first.
        outputs = self._run(self._outputs, self._weights, arrays)
        loss, totals = self._run(self._judged, outputs, arrays, self._by_example, examples)
        return BatchResult(loss, totals, outputs)

    @cached_property
    def _by_example(self) -> tuple[bool, ...]:
        """Tells of each tensor that the model gives whether it has a row per example: its size follows the batch's."""

        def shapes(times: int) -> list[tuple[int, ...]]:
            arrays = {
                name: jax.ShapeDtypeStruct((1, times * array.shape[0], *array.shape[1:]), array.dtype)
                for name, array in self._microbatch_shapes().items()
            }
            given = jax.eval_shape(self._functions.outputs, self._weights, arrays)
            return [tuple(leaf.shape) for leaf in jax.tree.leaves(given)]

        return tuple(first != second for first, second in zip(shapes(1), shapes(2), strict=True))

    def _start_next_logits(self, batch: HostBatches) -> jax.Array:
        return self._run(self._next_logits, self._weights, self._placed(batch, 1).arrays)

    @property
    def trainable(self) -> tuple[str, ...]:
        """Returns the canonical paths of the trainable variables."""
        return tuple(self._trainable)

    @property
    def program(self) -> Compiled:
        """Returns the compiled training program; its memory, cost analysis and text are those of one device.

        Raises:
          EngineError: nothing was compiled yet.
        """
        if not self._programs:
            raise EngineError("the step's program is asked for before it was compiled")
        return next(iter(self._programs.values()))

    def collectives(self) -> list[Collective]:
        """Returns what the compiled step communicates, read from XLA's program."""
        layers = [path for path in self._names.layers.values() if path]
        named = self.placements, layers, self._trainable
        looped = self._mode.loop_on_device
        return self._per_step(collectives(self.program.as_text(), self._axes, *named, self._data_axes, looped=looped))

    def program_cost(self) -> ProgramCost | None:
        """Returns what XLA counts of the compiled step on one device."""
        return program_cost(self.program, self._microbatches)

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns every layer's output for one micro-batch, in the order of the calls."""
        return layer_outputs(self._model, self._microbatch_size, self._data)

    def used_whole(self) -> set[str]:
        """Returns nothing: XLA splits every operation."""
        return set()

    def input_pieces(self) -> dict[str, dict[int, tuple[tuple[int, int], ...]]]:
        """Returns, for each input, device number -> (start, stop) in each dim of what it holds of a micro-batch."""
        numbers = {device: number for number, device in enumerate(self._mesh.devices.flat)}
        shapes = {name: (self._microbatch_size, *spec.shape) for name, spec in self._data.inputs.items()}
        return {name: pieces(self._lies[name], shape, numbers) for name, shape in shapes.items()}

    def variables(self) -> dict[str, VariableInfo]:
        """Returns variables and slots as JAX holds them."""
        return {path: variable_info(array) for path, array in self._tree.by_path(self._state).items()}

    def state(self) -> dict[str, Array]:
        """Returns whole arrays of variables and slots.

        The random generators are functions of seed and micro-batch, so they have no state to keep.
        """
        return {path: np.array(self._to_host(array)) for path, array in self._tree.by_path(self._state).items()}

    def shards(self) -> dict[str, list[Shard]]:
        """Returns variables and slots, each in its different pieces, as the devices hold them."""
        return {path: shards(array) for path, array in self._tree.by_path(self._state).items()}

    def plain_model(self) -> keras.Model:
        """Returns the plain Keras 3 model, whole in the host's memory, with the present weights or their averages."""
        model, _ = self._factory.begin(whole=self._built_whole)
        arrays = self._tree.by_path(self._state)
        for path, variable in Names(model).variables.items():
            (value,) = self._brought([arrays.get(ema_path(path), arrays[path])])
            private.set_value(variable, on_host(value, variable.dtype))  # a copy: the next step gives that away
        return model

    def saving(self) -> AbstractContextManager[None]:
        """Returns a context in which saving a model imports no TensorFlow."""
        return private.tensorflow_unimported()


make = JaxEngine  # see `runner.engine.registry`
