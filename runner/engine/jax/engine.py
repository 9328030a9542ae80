"""The engine `jax`: a Keras 3 model on the JAX backend, placed by jax.sharding and stepped by one jitted function.

Every variable gets a NamedSharding from the resolved plan; XLA's partitioner inserts the communication. Shapes: K
steps a call, B global batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runner import layout, mesh
from runner.config.errors import EngineError
from runner.config.schema import RunConfig
from runner.engine.base import (
    Array,
    Collective,
    DataSpec,
    EvalMetrics,
    HostBatches,
    LayerOutput,
    Part,
    PlacedBatches,
    ProgramCost,
    VariableInfo,
)
from runner.engine.calls import PendingCall, cut, example_counts
from runner.engine.jax import environment as jax_environment
from runner.engine.jax.arrays import fits, held, pieces
from runner.engine.jax.compile import choose, compiled, compiled_to_read, program_cost
from runner.engine.libraries import load_keras
from runner.engine.logits import LogitRows
from runner.engine.trace import trace_jax
from runner.optim import rules as optimizer

_running: list[Any] = []  # what the last program of this process gives that ran on several CPU devices
_SUM = "sum:"  # of a step's gradients so far; between two steps it means nothing, and is not saved


class JaxEngine:
    """Keras 3 on JAX; see `runner.engine.base.Engine` for what the methods promise."""

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int, *, planning: bool = False) -> None:
        jax_environment.check_installed()
        jax_environment.prepare_environment(config)
        load_keras()
        self._config, self._data, self._total_steps, self._planning = config, data, total_steps, planning
        self._parts = config.trainer.accumulate_steps
        self._micro_batch = config.dataset.batch_size // self._parts
        self._programs: dict[tuple[int, ...], Any] = {}
        self._split: Any = None

    def build(self) -> None:
        """Makes devices, mesh, model and slots, and places them.

        Raises:
          ConfigError: a layout that does not fit the model, or a builder that fails.
        """
        import jax

        from runner.engine.jax.adapter import Keras3Factory, Names, check_model

        if self._config.engine.compilation_cache:
            jax.config.update("jax_compilation_cache_dir", jax_environment.cache_folder())
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        self._mesh = mesh.configure_jax(self._config.mesh)
        on_cpu = mesh.device_kind(self._config.mesh) == "cpu"
        whole_images = not any(self._config.layout.inputs["image"][1:])
        made = self._config.model, self._data, self._config.trainer.seed, self._config.engine.precision
        self._factory = Keras3Factory(*made, on_cpu=on_cpu, whole_images=whole_images)
        self._model = self._factory.traced() if self._planning else self._factory.build()
        check_model(self._model, self._config, self._data.num_classes)
        names = Names(self._model)
        shapes = {path: tuple(variable.shape) for path, variable in names.variables.items()}
        axes, images = self._config.mesh.axes, (self._micro_batch, *self._data.input_shape)
        layout.check_inputs(self._config.layout, images, axes)
        self.placements: Mapping[str, layout.Placement] = layout.resolve(self._config.layout, shapes, axes)
        self._make_state(names)
        self._make_programs()

    def _make_state(self, names: Any) -> None:
        """Orders the variables as Keras wants them, and places the values that the builder drew."""
        import jax
        import jax.numpy as jnp

        from runner.engine.jax.adapter import seed_indices
        from runner.engine.jax.step import State

        paths = {id(variable): path for path, variable in names.variables.items()}
        seeds = seed_indices(self._model)
        others = [v for i, v in enumerate(self._model.non_trainable_variables) if i not in seeds]
        self._trained = [paths[id(variable)] for variable in self._model.trainable_variables]
        self._held = [paths[id(variable)] for variable in others]
        self._layers = [path for path in names.layers.values() if path]
        self._slots = optimizer.make_rule(self._config.optimizer, jnp).slots
        shardings = {path: self._sharding(placement.spec) for path, placement in self.placements.items()}
        trained = [shardings[path] for path in self._trained]
        averages = trained if self._config.optimizer.ema.decay is not None else []
        sums = trained if self._parts > 1 else []
        held = [shardings[path] for path in self._held]
        self._shardings = State(trained, held, [trained for _ in self._slots], averages, sums)
        kinds = {path: (tuple(variable.shape), variable.dtype) for path, variable in names.variables.items()}
        for path in self._trained:
            own = (*(f"optimizer/{slot}/{path}" for slot in self._slots), f"ema/{path}", f"{_SUM}{path}")
            kinds |= dict.fromkeys(own, kinds[path])
        if self._planning:
            self._state = self._map_state(lambda path, where: jax.ShapeDtypeStruct(*kinds[path], sharding=where))
            return
        values = {path: np.asarray(variable.value) for path, variable in names.variables.items()}
        values |= {f"ema/{path}": values[path] for path in self._trained}
        self._put({path: values[path] if path in values else np.zeros(*kind) for path, kind in kinds.items()})

    def _sharding(self, spec: Sequence[Any]) -> Any:
        from jax.sharding import NamedSharding, PartitionSpec

        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def _state_paths(self) -> Any:
        """Returns the state's tree with canonical paths as its leaves."""
        from runner.engine.jax.step import State

        slots = [[f"optimizer/{slot}/{path}" for path in self._trained] for slot in self._slots]
        averages = [f"ema/{path}" for path in self._trained if self._shardings.averages]
        sums = [f"{_SUM}{path}" for path in self._trained if self._shardings.sums]
        return State(self._trained, self._held, slots, averages, sums)

    def _put(self, values: Mapping[str, Array]) -> None:
        """Places whole host arrays as the state; a step begins the sums of its gradients anew."""
        import jax

        # A copy: the first step gives these buffers away, and they must not be the host array's own memory.
        def placed(path: str, sharding: Any) -> Any:
            return jax.device_put(np.array(values[path.removeprefix(_SUM)]), sharding, may_alias=False)

        self._state = self._map_state(placed)

    def _map_state(self, make: Callable[[str, Any], Any]) -> Any:
        """Returns the state's tree with what a function of canonical path and sharding gives."""
        import jax

        return jax.tree.map(make, self._state_paths(), self._shardings)

    def _make_programs(self) -> None:
        import jax

        from runner.engine.jax.layers.batch_norm import Parts
        from runner.engine.jax.layers.kernel_gradient import spread_over, unused_axes
        from runner.engine.jax.step import Step

        inputs = self._config.layout.inputs
        image, label = inputs["image"], inputs["label"]
        self._image, self._label = self._sharding((None, *image)), self._sharding((None, *label))
        self._whole = self._sharding(())
        pins = {
            "state": self._shardings,
            "image": self._sharding(image),
            "label": self._sharding(label),
            "loss": self._label,
        }
        step = Step(
            self._model,
            self._config,
            self._total_steps,
            self._randomness(),
            lambda value, what: jax.lax.with_sharding_constraint(value, pins[what]),
            spread_over(self._mesh) if unused_axes(self._config.mesh.axes, image) else None,
            Parts(self._config.mesh.axes[image[0]], self._gathered) if image[0] and not any(image[1:]) else None,
        )
        self._functions = step
        images = self._micro_batch, *self._data.input_shape
        self._way = choose(step, self._state, self._trained, self._config, images)
        looped = self._way.loop_on_device
        losses = self._label if looped else pins["label"]
        placed = (self._shardings, losses, losses, self._whole)
        self._train = jax.jit(step.many if looped else step.step, donate_argnums=0, out_shardings=placed)
        sums = (self._whole, self._whole)
        logits = self._sharding((image[0], None))
        self._eval = jax.jit(step.evaluated, out_shardings=(sums, logits))
        self._gradients = jax.jit(step.whole_gradients, out_shardings=self._shardings.trained)

    def _gathered(self, array: Any) -> Any:
        """Holds a traced array to be whole along its first dim; nothing is said of the others."""
        import jax
        from jax.sharding import PartitionSpec

        spec = None, *[PartitionSpec.UNCONSTRAINED] * (array.ndim - 1)
        return jax.lax.with_sharding_constraint(array, self._sharding(spec))

    def _randomness(self) -> Any:
        """Returns the model's random generators, and how far a step moves each."""
        import jax

        from runner.engine.jax.adapter import seed_indices
        from runner.engine.jax.step import Randomness

        places = seed_indices(self._model)
        if not places:
            return Randomness([], np.zeros((0, 2), np.uint32), [])
        if self._planning:  # no number is drawn
            return Randomness(places, np.zeros((len(places), 2), np.uint32), [0] * len(places))
        states = [np.asarray(self._model.non_trainable_variables[place].value) for place in places]
        values = [
            [v.value for v in vs] for vs in (self._model.trainable_variables, self._model.non_trainable_variables)
        ]
        images = np.zeros((1, *self._data.input_shape), np.float32)

        def moved(values: Any) -> list[Any]:  # XLA leaves out all but the counters
            _, new = self._model.stateless_call(*values, images, training=True)
            return [new[place] for place in places]

        after = jax.jit(moved)(values)
        draws = [int(np.asarray(new)[1]) - int(state[1]) for new, state in zip(after, states, strict=True)]
        return Randomness(places, np.asarray(states, np.uint32), draws)

    @property
    def holds(self) -> bool:
        """Returns whether the devices hold a split's images."""
        return self._split is not None

    def hold(self, images: Array) -> None:
        """Keeps a split's images on every device, split as a batch's are but for their first dim."""
        if fits(images.nbytes, self._config):
            where = self._sharding((None, *self._config.layout.inputs["image"][1:]))
            self._split = held(images, where, self._planning)

    def place(self, batches: HostBatches) -> PlacedBatches:
        """Places images, as uint8 or their places in what is held, and labels, -1 for padding, by micro-batches."""
        return self._placed(batches, self._parts)

    def _placed(self, batches: HostBatches, parts: int) -> PlacedBatches:
        import jax

        image = self._image if batches.images.ndim > 2 else self._label
        images, labels = jax.device_put(cut(batches, parts), (image, self._label))
        return PlacedBatches(images, labels, batches.weights, batches.steps)

    def _given(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> tuple[Any, Any, Any, Array]:
        """Returns what a step takes beside the state: the split held, or None; images or places; labels; numbers."""
        factor = np.float32(rate_factor).view(np.int32)
        counts = example_counts(batches.weights, self._parts)
        numbers = np.concatenate([[batches.steps * self._parts, first_step, factor], counts]).astype(np.int32)
        return self._split if batches.images.ndim == 2 else None, batches.images, batches.labels, numbers

    def compile(self, batches: PlacedBatches) -> None:
        """Makes the training program for batches of these shapes, from disk where an earlier run left it."""
        self._compiled(batches)

    def _compiled(self, batches: PlacedBatches) -> Any:
        shape = tuple(batches.images.shape)
        if shape not in self._programs:
            arguments = [self._state, *self._given(batches, 0)]
            arguments += [] if self._way.loop_on_device else [np.int32(0)]
            lowered = self._train.lower(*arguments)
            self._programs[shape] = compiled_to_read(lowered) if self._planning else compiled(lowered, self._way)
        return self._programs[shape]

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> PendingCall:
        """Runs the steps in one program, or one after another, and does not wait for the last program to end."""
        program, given = self._compiled(batches), self._given(batches, first_step, rate_factor)
        if self._way.loop_on_device:
            self._state, loss, hit, penalty = self._run(program, self._state, *given)
            return PendingCall(loss, hit, penalty, batches.weights, batches.steps, self._parts, np.asarray)
        rows = []
        for index in range(batches.steps * self._parts):
            self._state, *row = self._run(program, self._state, *given, np.int32(index))
            rows.append(row)
        losses, hits, penalties = (list(column) for column in zip(*rows, strict=True))
        return PendingCall(losses, hits, penalties, batches.weights, batches.steps, self._parts, np.asarray)

    def _run(self, program: Any, *arguments: Any) -> Any:
        """Starts a program; where several devices share a CPU's threads, when the one before has ended.

        Two at a time would need twice the threads, see `jax_environment.threads`.
        """
        if not self._way.on_cpus or self._mesh.size == 1:
            return program(*arguments)
        import jax

        jax.block_until_ready(_running)
        found = program(*arguments)
        _running[:] = [found]
        return found

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Traces what runs in the context."""
        return trace_jax(folder)

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns the first batch's whole gradients; the state stays as it is."""
        placed = self.place(batches)
        arguments = self._state, *self._given(placed, step)
        rounds = [map(np.asarray, self._run(self._gradients, *arguments, np.int32(i))) for i in range(self._parts)]
        sums = [np.array(sum(found)) for found in zip(*rounds, strict=True)]
        return dict(zip(self._trained, sums, strict=True))

    def evaluate(self, batches: Iterable[HostBatches]) -> EvalMetrics:
        """Evaluates batch by batch, sums kept on the devices and read once, logits a batch late."""
        import jax

        classes = self._data.num_classes
        zero = (np.zeros((), np.float32), np.zeros((classes, classes), np.int32))
        sums = jax.device_put(zero, (self._whole, self._whole))
        weights = (self._state.averages or self._state.trained, self._state.held)
        rows = LogitRows(np.asarray)
        for batch in batches:
            placed = self._placed(batch, 1)
            sums, logits = self._run(self._eval, weights, placed.images, placed.labels, sums)
            rows.add(logits, batch.weights[0])
        confusion = np.asarray(sums[1]).astype(np.int64)
        examples = int(confusion.sum())
        share = 1.0 / max(examples, 1)
        loss, accuracy = float(sums[0]) * share, float(np.trace(confusion)) * share
        return EvalMetrics(loss, accuracy, examples, confusion, rows.whole(classes))

    @property
    def trained(self) -> tuple[str, ...]:
        """Returns the canonical paths of the trainable variables."""
        return tuple(self._trained)

    @property
    def program(self) -> Any:
        """Returns the compiled training program; its memory, cost analysis and text are those of one device.

        Raises:
          EngineError: nothing was compiled yet.
        """
        if not self._programs:
            raise EngineError("the step's program is asked for before it was compiled")
        return next(iter(self._programs.values()))

    def collectives(self) -> list[Collective]:
        """Returns what the compiled step communicates, read from XLA's program."""
        from runner.engine.jax.program import collectives

        data_axes = {axis for spec in self._config.layout.inputs.values() for axis in spec if axis}
        text, axes = self.program.as_text(), self._config.mesh.axes
        named = self.placements, self._layers, self._trained
        found = collectives(text, axes, *named, data_axes, looped=self._way.loop_on_device)
        return [replace(c, count=c.count * self._parts, bytes=c.bytes * self._parts) for c in found]

    def program_cost(self) -> ProgramCost | None:
        """Returns what XLA counts of the compiled step on one device."""
        return program_cost(self.program, self._parts)

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns every layer's output for one micro-batch, in the order of the calls."""
        from runner.engine.jax.adapter import layer_outputs

        return layer_outputs(self._model, self._micro_batch, self._data)

    def used_whole(self) -> set[str]:
        """Returns nothing: XLA splits every operation."""
        return set()

    def image_pieces(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Returns device number -> (start, stop) in each dim of what the device holds of a micro-batch of images."""
        shape = (self._micro_batch, *self._data.input_shape)
        held = self._sharding(self._config.layout.inputs["image"]).devices_indices_map(shape)
        numbers = {device: number for number, device in enumerate(self._mesh.devices.flat)}
        return {
            numbers[device]: tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
            for device, index in held.items()
        }

    def _arrays(self) -> dict[str, Any]:
        import jax

        kept = self._state_paths()._replace(sums=[]), self._state._replace(sums=[])
        return dict(zip(*(jax.tree.leaves(tree) for tree in kept), strict=True))

    def variables(self) -> dict[str, VariableInfo]:
        """Returns variables and slots as JAX holds them."""
        found = {}
        for path, array in self._arrays().items():
            spec = tuple(array.sharding.spec) + (None,) * (array.ndim - len(array.sharding.spec))
            size = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
            found[path] = VariableInfo(tuple(array.shape), str(array.dtype), spec, size)
        return found

    def state(self) -> dict[str, Array]:
        """Returns whole arrays of variables and slots.

        The random generators are functions of seed and micro-batch, so they have no state to keep.
        """
        return {path: np.array(array) for path, array in self._arrays().items()}

    def parts(self) -> dict[str, list[Part]]:
        """Returns host copies of variables and slots, each in its different pieces."""
        return {path: pieces(array) for path, array in self._arrays().items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Sets variables and slots.

        Raises:
          ValueError: a path that is missing or unknown, or an array of another shape.
        """
        own = self._arrays()
        if set(own) != set(state):
            raise ValueError(f"state differs in {', '.join(sorted(set(own) ^ set(state)))}")
        values = {path: state[path] for path in own}
        for path, array in own.items():
            if tuple(array.shape) != values[path].shape:
                raise ValueError(f"{path} has shape {tuple(array.shape)}, the state has {values[path].shape}")
        self._put({path: values[path].astype(array.dtype) for path, array in own.items()})

    def plain_model(self) -> Any:
        """Returns the plain Keras 3 model, whole on one device, with the present weights or their averages."""
        from runner.engine.jax.adapter import Names

        model, held = self._factory.build(stock=True), self.state()
        for path, variable in Names(model).variables.items():
            variable.assign(held.get(f"ema/{path}", held[path]))
        return model
