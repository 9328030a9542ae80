"""What the DTensor engines share: devices, placed variables, compiled steps. The model comes from a source.

Shapes: K steps a call, B global batch, C classes, HWD an image's height, width and channels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
    VariableInfo,
)
from runner.engine.calls import PendingCall, cut, example_counts
from runner.engine.dtensor import canary, program
from runner.engine.dtensor.adapter import Source
from runner.engine.dtensor.environment import pack, prepare_environment, unpack, zeros
from runner.engine.dtensor.explain import compile_error, is_compile_error
from runner.engine.dtensor.packing import Packing, packing
from runner.engine.dtensor.state_reader import StateReader
from runner.engine.dtensor.step import COUNTS, Held, Steps
from runner.engine.dtensor.variable_reads import gather_for_use, read_held
from runner.engine.libraries import load_tensorflow
from runner.engine.logits import LogitRows
from runner.engine.trace import trace_tensorflow
from runner.model import target
from runner.model.builder import check_trainable
from runner.optim import rules as optimizer

logger = logging.getLogger(__name__)

_COMPILATIONS = 5


class DTensorEngine:
    """Training on a DTensor mesh; see `runner.engine.base.Engine` for what the methods promise."""

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int, *, planning: bool = False) -> None:
        prepare_environment(config)
        load_tensorflow()
        self._config, self._data, self._total_steps, self._planning = config, data, total_steps, planning
        self._batch_axis, self._parts = config.layout.inputs["image"][0], config.trainer.accumulate_steps
        self._micro_batch = config.dataset.batch_size // self._parts

    def build(self) -> None:
        """Makes devices, mesh, model and slots, checks the plan and runs the canary.

        Raises:
          ConfigError: a layout that does not fit the model, or a builder that fails.
          EngineError: the canary found wrong arithmetic on this mesh.
        """
        self._mesh = mesh.configure_dtensor(self._config.mesh, self._config.engine.intra_op_threads)
        if self._config.engine.canary and not self._planning:
            canary.check(self._mesh, self._batch_axis, reread=not self._config.engine.combine_all_reduces)
        self._source = self._make_source()
        if self._planning and not self._source.lets_users_place:
            self._mesh = mesh.first_device_alone(self._mesh)
        plain = self._source.plain()
        self._source.check(plain, self._config)
        drawn = self._source.variables(plain)
        shapes = {path: tuple(variable.shape) for path, variable in drawn.items()}
        axes, images = self._config.mesh.axes, (self._micro_batch, *self._data.input_shape)
        layout.check_inputs(self._config.layout, images, axes)
        self.placements: Mapping[str, layout.Placement] = layout.resolve(self._config.layout, shapes, axes)
        layouts = {path: self._layout(placement.spec) for path, placement in self.placements.items()}
        self._model = self._source.on_mesh(self._mesh, layouts)
        self._variables = self._source.variables(self._model)
        check_layouts(self._variables, layouts)
        trainable = {id(variable) for variable in self._model.trainable_variables}
        self._trained = [path for path, variable in self._variables.items() if id(variable) in trainable]
        check_trainable(self._trained, self._config.model)
        self._slots = {
            f"optimizer/{slot}/{path}": zeros(self._variables[path])
            for path in self._trained
            for slot in optimizer.make_rule(self._config.optimizer).slots
        }
        if self._config.optimizer.ema.decay is not None:
            self._slots |= {f"ema/{path}": zeros(self._variables[path]) for path in self._trained}
        self._sums = {path: zeros(self._variables[path]) for path in self._trained} if self._parts > 1 else {}
        self._gather_for_use()
        if not self._planning:
            for path, variable in drawn.items():  # drawn whole: what is drawn under a layout depends on the mesh
                for held in (self._variables[path], self._slots.get(f"ema/{path}")):
                    if held is not None:
                        held.assign(pack(variable.numpy(), held.layout))
        self._prepare_calls()

    def _make_source(self) -> Source:
        """Returns where the engine's models come from."""
        raise NotImplementedError

    def _gather_for_use(self) -> None:
        """Gathers for use what is split over an axis of the inputs, and kernels that an operation needs whole."""
        data_axes = {axis for spec in self._config.layout.inputs.values() for axis in spec if axis}
        whole = self._source.whole(self._model)
        for path, placement in self.placements.items():
            used = tuple(None if axis in data_axes or path in whole else axis for axis in placement.spec)
            if used != placement.spec:
                gather_for_use(self._variables[path], path, self._layout(used))

    def _layout(self, spec: layout.Spec) -> Any:
        from tensorflow.experimental import dtensor

        return dtensor.Layout([dtensor.UNSHARDED if axis is None else axis for axis in spec], self._mesh)

    def _prepare_calls(self) -> None:
        image, label = self._config.layout.inputs["image"], self._config.layout.inputs["label"]
        self._image_layout = self._layout((None, *image))
        self._label_layout = self._layout((None, *label))
        self._vector = self._layout((None,))
        self._train: Any = None
        self._reader: StateReader | None = None
        state = self._model, self._variables, self._slots, self._sums, self._trained
        held = Held(*state, self._mesh, self._packing())
        self._steps = Steps(self._config, self._data.num_classes, self._total_steps, held)
        self._eval = self._traced(self._steps.evaluate)

    def _packing(self) -> Packing | None:
        """Returns how the state is packed while a call lasts, None where each variable stays by itself."""
        inputs, options = self._config.layout.inputs, self._config.engine
        if not options.combine_all_reduces or self._config.optimizer.reread_slots or any(inputs["image"][1:]):
            return None
        if self._parts > 1:  # the sums of the parts' gradients lie in variables of their own
            return None
        trained = {path: self._variables[path] for path in self._trained}
        return packing(
            {path: variable.shape.as_list() for path, variable in trained.items()},
            {path: variable.dtype.name for path, variable in trained.items()},
            {path: self.placements[path].spec for path in trained},
            self._config.mesh.axes[self._batch_axis] if self._batch_axis else 1,
        )

    def _traced(self, function: Any) -> Any:
        """Returns a graph function. Only a user's own model may need AutoGraph, which doubles the time of a trace."""
        import tensorflow as tf

        return tf.function(function, autograph=not target.is_own(self._config.model))

    def place(self, batches: HostBatches) -> PlacedBatches:
        """Packs images as uint8, and labels with -1 in place of padding, micro-batch by micro-batch."""
        return self._packed(batches, self._parts)

    def _packed(self, batches: HostBatches, parts: int) -> PlacedBatches:
        images, labels = cut(batches, parts)
        return PlacedBatches(
            pack(images, self._image_layout), pack(labels, self._label_layout), batches.weights, batches.steps
        )

    def compile(self, batches: PlacedBatches) -> None:
        """Makes the training program for batches of these shapes.

        Raises:
          ConfigError: the model or the layout has a form that DTensor can't compute.
        """
        import tensorflow as tf

        if self._train is not None:
            return
        try:
            self._train = self._compiled(batches)
        except tf.errors.OpError as error:
            if not is_compile_error(str(error)):
                raise
            logger.error("DTensor could not compile the step:\n%s", error)
            operations = [(operation.type, operation.name) for operation in self._steps.graph.get_operations()]
            raise compile_error(str(error), operations, [layer.name for layer in self._model.submodules]) from None
        except Exception:
            if self._steps.refusal is not None:  # AutoGraph wraps it in an error of its own
                raise self._steps.refusal from None
            raise

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> PendingCall:
        """Runs the steps in one call; their number is an input, so that it needs no new trace."""
        self.compile(batches)
        inputs = self._train_inputs(batches, batches.steps * self._parts, first_step, rate_factor)
        loss, hit, penalty = self._train(*inputs)
        return PendingCall(loss, hit, penalty, batches.weights, batches.steps, self._parts, unpack)

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Traces what runs in the context."""
        return trace_tensorflow(folder)

    @property
    def trained(self) -> tuple[str, ...]:
        """Returns the canonical paths of the trainable variables."""
        return tuple(self._trained)

    def collectives(self) -> list[Collective]:
        """Returns what the compiled step communicates, read from the program that DTensor made.

        Raises:
          EngineError: nothing was compiled yet.
        """
        if self._train is None:
            raise EngineError("the step's collectives are asked for before it was compiled")
        data_axes = {axis for spec in self._config.layout.inputs.values() for axis in spec if axis}
        axes, names = self._config.mesh.axes, {path: variable.name for path, variable in self._variables.items()}
        found = program.collectives(
            self._steps.loop,
            self._before,
            axes,
            self.placements,
            names,
            self._trained,
            data_axes,
            self._steps.packing,
        )
        return [replace(c, count=c.count * self._parts, bytes=c.bytes * self._parts) for c in found]

    def _train_inputs(
        self, batches: PlacedBatches, rounds: int, first_step: int, rate_factor: float = 1.0
    ) -> tuple[Any, ...]:
        """Returns images, labels and all numbers of a call in one vector.

        DTensor takes an input of a few elements for a constant, and compiles anew when its value changes.
        """
        counts = example_counts(batches.weights, self._parts)
        numbers = np.zeros(COUNTS + len(counts), np.float32)
        numbers[:3], numbers[COUNTS:] = (rounds, first_step, rate_factor), counts
        return batches.images, batches.labels, pack(numbers, self._vector)

    def _compiled(self, batches: PlacedBatches) -> Any:
        """Returns the training call, compiled by calling it for no step.

        DTensor names the functions that it makes of a loop itself, and in a few compilations of a hundred it refuses
        one as "a different function with the same name". Nothing has run then: a new trace under a new name is tried.

        Raises:
          tf.errors.InvalidArgumentError: it was refused each time, or something else is wrong.
        """
        import tensorflow as tf

        self._before = program.function_names()
        for left in reversed(range(_COMPILATIONS)):
            call, packed = self._traced(self._steps.train), self._steps.packing is not None
            try:
                call(*self._train_inputs(batches, 0, 0))
                break
            except tf.errors.InvalidArgumentError as error:
                if "different function with the same name" not in str(error) or not left:
                    raise
                logger.warning("compiling again: %s", error.message)
            except Exception:
                if not packed or self._steps.packing is not None:
                    raise
                logger.debug("the state is not packed: a gradient is no sum over the rows of a matrix")
        return call

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns the first batch's whole gradients; batch statistics are put back as they were."""
        placed = self.place(HostBatches(batches.images[:1], batches.labels[:1], batches.weights[:1], 1))
        held = {path: self._variables[path] for path in self._variables if path not in self._trained}
        before = {path: unpack(variable) for path, variable in held.items()}
        traced = self._traced(self._steps.gradients)
        drawn = (traced(*self._train_inputs(placed, i, step * self._parts + i)) for i in range(self._parts))
        rounds = [[unpack(gradient) for gradient in found] for found in drawn]
        gradients = {path: sum(found) for path, found in zip(self._trained, zip(*rounds, strict=True), strict=True)}
        for path, value in before.items():
            held[path].assign(pack(value, held[path].layout))
        return gradients

    def evaluate(self, batches: Iterable[HostBatches]) -> EvalMetrics:
        """Evaluates batch by batch, sums kept on the devices and read once, logits a batch late."""
        classes = self._data.num_classes
        shapes: tuple[tuple[int, ...], ...] = ((), (classes, classes))
        sums = [pack(np.zeros(shape, np.float32), self._layout((None,) * len(shape))) for shape in shapes]
        rows = LogitRows(unpack)
        with self._averages():
            for batch in batches:
                placed = self._packed(batch, 1)
                *sums, logits = self._eval(placed.images, placed.labels, *sums)
                rows.add(logits, batch.weights[0])
            loss_sum, confusion_sum = (unpack(each) for each in sums)
        confusion = np.rint(confusion_sum).astype(np.int64)
        examples = int(confusion.sum())
        share = 1.0 / max(examples, 1)
        loss, accuracy = float(loss_sum) * share, float(np.trace(confusion)) * share
        return EvalMetrics(loss, accuracy, examples, confusion, rows.whole(classes))

    @contextmanager
    def _averages(self) -> Iterator[None]:
        """Puts the averages of the weights, where the run keeps them, into the model while the context lasts."""
        averages = {path: self._slots[f"ema/{path}"] for path in self._trained if f"ema/{path}" in self._slots}
        before = {path: read_held(self._variables[path]) for path in averages}
        try:
            for path, average in averages.items():
                self._variables[path].assign(average.read_value())
            yield
        finally:
            for path, value in before.items():
                self._variables[path].assign(value)

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns every layer's output for one micro-batch, in the order of the calls."""
        return self._source.layer_outputs(self._micro_batch)

    def used_whole(self) -> set[str]:
        """Returns the paths of variables that operations need whole."""
        return self._source.whole(self._model)

    def variables(self) -> dict[str, VariableInfo]:
        """Returns variables and slots as DTensor holds them."""
        from tensorflow.experimental import dtensor

        found = {}
        for path, variable in {**self._variables, **self._slots}.items():
            spec = tuple(None if axis == dtensor.UNSHARDED else axis for axis in variable.layout.sharding_specs)
            local = layout.Placement(path, tuple(variable.shape), spec, None).shard_shape(self._config.mesh.axes)
            size = math.prod(local) * variable.dtype.size
            found[path] = VariableInfo(tuple(variable.shape), variable.dtype.name, spec, size)
        return found

    def state(self) -> dict[str, Array]:
        """Returns whole arrays of variables and slots."""
        return {path: unpack(variable) for path, variable in {**self._variables, **self._slots}.items()}

    def parts(self) -> dict[str, list[Part]]:
        """Returns host copies of variables and slots, each in its different pieces."""
        if self._reader is None:
            self._reader = StateReader({**self._variables, **self._slots})
        return self._reader.parts()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Sets variables and slots.

        Raises:
          ValueError: a path that is missing or unknown, or an array of another shape.
        """
        own = {**self._variables, **self._slots}
        if set(own) != set(state):
            raise ValueError(f"state differs in {', '.join(sorted(set(own) ^ set(state)))}")
        for path, variable in own.items():
            value = state[path]
            if tuple(variable.shape) != value.shape:
                raise ValueError(f"{path} has shape {tuple(variable.shape)}, the state has {value.shape}")
            variable.assign(pack(value.astype(variable.dtype.as_numpy_dtype), variable.layout))

    def plain_model(self) -> Any:
        """Returns the plain model with the present weights, or their averages."""
        with self._averages():
            return self._source.exported({path: unpack(variable) for path, variable in self._variables.items()})


def check_layouts(variables: Mapping[str, Any], layouts: Mapping[str, Any]) -> None:
    """Checks that every variable lies as the plan says.

    Raises:
      EngineError: names the first that does not.
    """
    for path, variable in variables.items():
        if variable.layout != layouts[path]:
            raise EngineError(f"variable {path} lies as {variable.layout}, the plan says {layouts[path]}")
