"""Training on a DTensor mesh: devices, placed variables, compiled steps. An adapter knows the kind of model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

from runner import layout
from runner.data.base import WEIGHT, Array
from runner.engine.base import Collective, HostBatches, LayerOutput, PlacedBatches, Shard, VariableInfo
from runner.engine.calls import PendingCall, cut, example_counts
from runner.engine.common import MeshEngine
from runner.engine.dtensor import canary, collectives, processes
from runner.engine.dtensor.adapters import Model, make_adapter
from runner.engine.dtensor.arrays import layout_of, pack, unpack
from runner.engine.dtensor.explain import compile_error, compile_warning, is_compile_error
from runner.engine.dtensor.mesh import first_device_alone, make_devices, make_mesh
from runner.engine.dtensor.packing import Packing, packing
from runner.engine.dtensor.private import function_names, needs_autograph, uncast
from runner.engine.dtensor.state import State, make_state
from runner.engine.dtensor.state_reader import StateReader
from runner.engine.dtensor.step import COUNTS, Steps
from runner.engine.dtensor.trace import trace
from runner.engine.dtensor.variable_reads import gather_for_use
from runner.engine.evaluation import BatchResult
from runner.errors import EngineError
from runner.host import stages
from runner.host.outputs import warn
from runner.model import contract, target
from runner.model.builder import check_trainable
from runner.optim.paths import is_ema, owner_of
from runner.optim.rules import make_rule
from runner.processes.team import current

logger = logging.getLogger(__name__)

_COMPILATIONS = 5
# Layers that count over the batch, up to which all-reduces are merged unasked: DTensor looks for each pair of
# all-reduces through all that follows, for minutes where such layers are many.
_MERGED_STATISTICS = 64
_TAKEN = "different function with the same name"
F = TypeVar("F", bound=Callable[..., object])
Call = Callable[[Mapping[str, tf.Tensor], tf.Tensor], tuple[dict[str, tf.Tensor], tf.Tensor]]


def _optimize(optimizes: bool) -> None:
    """Says whether what is compiled next is made fast, which is half of the time of it.

    It is said from the start: a program that ran before it was said for the first time is compiled again.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimizes})


class DTensorEngine(MeshEngine[tf.Tensor]):
    """Training on a DTensor mesh; see `runner.engine.base.Engine` for what the methods promise."""

    _state: State
    _steps: Steps

    def _make_devices(self) -> None:
        self._devices = make_devices(self._config.mesh, self._config.engine.intra_op_threads)

    @property
    def _batch_axis(self) -> str | None:
        return self._array_specs[WEIGHT][0]

    def _make_model(self) -> Mapping[str, tuple[int, ...]]:
        tf_keras.backend.experimental.enable_tf_random_generator()  # else initial weights are others
        self._adapter = make_adapter(self._config, self._data, blank=self._planning)
        self._plain = self._adapter.plain()
        self._adapter.check(self._plain, self._config)
        self._drawn = _stored(self._adapter.variables(self._plain))
        self._constraints = contract.constraints(self._drawn)
        warning = compile_warning(self._config.engine.name, len(self._drawn))
        if warning and current().is_first:
            warn(warning)
        return {path: tuple(variable.shape) for path, variable in self._drawn.items()}

    def _make_mesh(self) -> None:
        """Makes the mesh and tries its arithmetic. DTensor must know by then whether it is to merge all-reduces."""
        merges = self._config.engine.combine_all_reduces
        settings = self._config.engine
        if merges is None:
            merges = self._adapter.batch_statistics(self._plain) <= _MERGED_STATISTICS
            self._config = replace(self._config, engine=replace(settings, combine_all_reduces=merges))
        self._mesh = make_mesh(self._config.mesh, self._devices, merges=merges)
        if settings.canary and not self._planning:
            with stages.stage("checking the mesh's arithmetic"):
                canary.check(self._mesh, self._batch_axis, reread=not merges)
        if self._planning and not self._adapter.lets_users_place:
            self._mesh = first_device_alone(self._mesh)

    def _make_state(self) -> None:
        self._make_mesh()
        layouts = {path: layout_of(placement.spec, self._mesh) for path, placement in self.placements.items()}
        self._model: Model = self._adapter.on_mesh(self._plain, self._mesh, layouts)
        variables = _stored(self._adapter.variables(self._model))
        for path, variable in variables.items():
            if variable.layout != layouts[path]:
                raise EngineError(f"variable {path} lies as {variable.layout}, the plan says {layouts[path]}")
        rule = make_rule(self._config.optimizer, tf)
        averages = self._config.optimizer.ema.decay is not None
        trainable = [uncast(variable) for variable in self._model.trainable_variables]
        self._state = make_state(
            variables, trainable, rule, self._constraints, averages=averages, accumulates=self._microbatches > 1
        )
        check_trainable(self._state.trainable, self._config.model)
        self._gather_for_use()
        if not self._planning:  # drawn whole: what is drawn under a layout depends on the mesh
            drawn = {path: variable.numpy() for path, variable in self._drawn.items()}
            self._state.assign(drawn | {path: drawn[owner_of(path)] for path in self._state.slots if is_ema(path)})
        self._reader: StateReader | None = None
        del self._drawn, self._plain

    def _gather_for_use(self) -> None:
        """Gathers for use what is split over an axis of the inputs, and kernels that an operation needs whole."""
        whole = self.used_whole()
        for path, placement in self.placements.items():
            used = tuple(None if axis in self._data_axes or path in whole else axis for axis in placement.spec)
            if used != placement.spec:
                gather_for_use(self._state.variables[path], path, layout_of(used, self._mesh))

    def _make_programs(self) -> None:
        self._layouts = {name: layout_of((None, *spec), self._mesh) for name, spec in self._array_specs.items()}
        self._vector = layout_of((None,), self._mesh)
        self._train: Call | None = None
        found = self._config, self._data, self._total_steps, self._model, self._state, self._mesh, self._array_specs
        self._steps = Steps(*found, self._packing())
        _optimize(not self._planning)  # a plan's program is only read
        self._gradients, self._eval = self._traced(self._steps.gradients), self._traced(self._steps.evaluate)
        self._next_logits = self._traced(self._steps.next_logits)
        self._outputs = self._traced(self._steps.outputs)
        self._judged: dict[int | None, Callable[..., tuple[tf.Tensor, dict[str, tf.Tensor]]]] = {}

    def _packing(self) -> Packing | None:
        """Returns how the state is packed while a call lasts, None where each variable stays by itself."""
        splits_more = any(axis for spec in self._array_specs.values() for axis in spec[1:])
        if not self._config.engine.combine_all_reduces or self._config.optimizer.reread_slots or splits_more:
            return None
        if self._microbatches > 1:  # the sums of the micro-batches' gradients lie in variables of their own
            return None
        variables = self.variables()
        groups = self._axes[self._batch_axis] if self._batch_axis else 1
        elementwise = make_rule(self._config.optimizer, tf).elementwise
        return packing({path: variables[path] for path in self._state.trainable}, groups, elementwise=elementwise)

    def _traced(self, function: F) -> F:
        """Returns a graph function. Only a user's own code may need AutoGraph, which doubles the time of a trace."""
        config = self._config
        users = needs_autograph(self._model) or config.task.name == "custom"
        traced: F = tf.function(function, autograph=users and not target.is_own(config.model))
        return traced

    def place(self, batches: HostBatches) -> PlacedBatches:
        """Packs every array, micro-batch by micro-batch."""
        return self._placed(batches, self._microbatches)

    def _placed(self, batches: HostBatches, microbatches: int) -> PlacedBatches:
        arrays = {name: pack(array, self._layouts[name]) for name, array in cut(batches, microbatches).items()}
        return PlacedBatches(arrays, batches.weights, batches.steps)

    def compile(self, batches: PlacedBatches) -> None:
        """Makes the training program for batches of these shapes.

        Raises:
          ConfigError: the model or the layout has a form that DTensor can't compute.
        """
        if self._train is not None:
            return
        with self._explained():
            self._train = self._compiled(batches)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what DTensor says of a program that it can't compile into one line."""
        try:
            yield
        except tf.errors.OpError as error:
            if not is_compile_error(str(error)):
                raise
            logger.error("DTensor could not compile the step:\n%s", error)
            graph = self._steps.graph
            operations = [(each.type, each.name) for each in graph.get_operations()] if graph is not None else []
            raise compile_error(str(error), operations, [layer.name for layer in self._model.submodules]) from None
        except Exception:
            if self._steps.refusal is not None:  # AutoGraph wraps it in an error of its own
                raise self._steps.refusal from None
            raise

    def _compiled(self, batches: PlacedBatches) -> Call:
        """Returns the training call, compiled by calling it for no step.

        DTensor names the functions that it makes of a loop itself, and in a few compilations of a hundred it refuses
        one as "a different function with the same name". Nothing has run then: a new trace under a new name is tried,
        but not of several processes, whose compilations must be alike.

        Raises:
          tf.errors.InvalidArgumentError: it was refused each time, or something else is wrong.
        """
        self._before = function_names()
        for left in reversed(range(_COMPILATIONS)):
            call = self._traced(self._steps.train)
            packs = self._steps.packing is not None
            try:
                call(batches.arrays, self._numbers(batches, 0, 0))
                break
            except tf.errors.InvalidArgumentError as error:
                if _TAKEN not in str(error) or not left or not processes.is_here(self._mesh):
                    raise
                logger.warning("compiling again: %s", error.message)
            except Exception:
                if not packs or self._steps.packing is not None:
                    raise
                logger.debug("the state is not packed: a gradient is no sum over the rows of a matrix")
        return call

    def _numbers(self, batches: PlacedBatches, rounds: int, first_step: int, rate_factor: float = 1.0) -> tf.Tensor:
        """Returns all numbers of a call in one vector, see `COUNTS`."""
        counts = example_counts(batches.weights, self._microbatches)
        numbers = np.zeros(COUNTS + len(counts), np.float32)
        numbers[:3], numbers[COUNTS:] = (rounds, first_step, rate_factor), counts
        return pack(numbers, self._vector)

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> PendingCall[tf.Tensor]:
        """Runs the steps in one call; their number is an input, so that it needs no new trace."""
        numbers = self._numbers(batches, batches.steps * self._microbatches, first_step, rate_factor)
        for left in reversed(range(_COMPILATIONS)):
            self.compile(batches)
            assert self._train is not None
            try:
                sums, regularization = self._train(batches.arrays, numbers)
                break
            except tf.errors.InvalidArgumentError as error:  # DTensor may lower a program once more, as in `_compiled`
                if _TAKEN not in str(error) or not left or not processes.is_here(self._mesh):
                    raise
                logger.warning("compiling again: %s", error.message)
                self._train = None
        return PendingCall(sums, regularization, batches.weights, batches.steps, self._microbatches, unpack)

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Traces what runs in the context."""
        return trace(folder)

    @property
    def trainable(self) -> Sequence[str]:
        """Returns the canonical paths of the trainable variables."""
        return tuple(self._state.trainable)

    def collectives(self) -> list[Collective]:
        """Returns what the compiled step communicates, read from the program that DTensor made.

        Raises:
          EngineError: nothing was compiled yet.
        """
        if self._train is None:
            raise EngineError("the step's collectives are asked for before it was compiled")
        found = collectives.collectives(
            self._steps.loop,
            self._before,
            self._axes,
            self.placements,
            {path: variable.name for path, variable in self._state.variables.items()},
            self.trainable,
            self._data_axes,
            self._steps.packing,
        )
        return self._per_step(found)

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns the first batch's whole gradients; batch statistics are put back as they were."""
        _optimize(False)  # a program that runs a few times
        try:
            with self._state.unchanged(), self._explained():
                return super().gradients(batches, step)
        finally:
            _optimize(not self._planning)

    def _gradient_round(self, batches: PlacedBatches, step: int, index: int) -> list[Array]:
        numbers = self._numbers(batches, index, step * self._microbatches + index)
        return [unpack(gradient) for gradient in self._gradients(batches.arrays, numbers)]

    def _start_evaluation(self, batch: HostBatches, examples: int | None) -> BatchResult[tf.Tensor]:
        arrays = self._placed(batch, 1).arrays
        with self._explained():
            if not self._data.task.reads_batch:
                return BatchResult(*self._eval(arrays))
            # In two programs: the number of examples is a constant of the second, and the model is in the first.
            outputs = self._outputs(arrays)
            if examples not in self._judged:
                self._judged[examples] = self._traced(partial(self._steps.judged, examples=examples))
            loss, totals = self._judged[examples](outputs, arrays)
        return BatchResult(loss, totals, outputs)

    def _start_next_logits(self, batch: HostBatches) -> tf.Tensor:
        with self._explained():
            return self._next_logits(self._placed(batch, 1).arrays)

    def _to_host(self, value: tf.Tensor) -> Array:
        return unpack(value)

    def _averaged_weights(self) -> AbstractContextManager[None]:
        return self._state.averaged()

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns every layer's output for one micro-batch, in the order of the calls."""
        return self._adapter.layer_outputs(self._microbatch_size)

    def used_whole(self) -> set[str]:
        """Returns the paths of variables that operations need whole."""
        return self._adapter.whole(self._model)

    def variables(self) -> dict[str, VariableInfo]:
        """Returns variables and slots as DTensor holds them."""
        found = {}
        for path, variable in self._state.saved.items():
            spec = tuple(None if axis == dtensor.UNSHARDED else axis for axis in variable.layout.sharding_specs)
            local = layout.Placement(path, tuple(variable.shape), spec, None).shard_shape(self._axes)
            size = math.prod(local) * variable.dtype.size
            found[path] = VariableInfo(tuple(variable.shape), variable.dtype.name, spec, size)
        return found

    def state(self) -> dict[str, Array]:
        """Returns whole arrays of variables and slots."""
        return {path: unpack(variable) for path, variable in self._state.saved.items()}

    def shards(self) -> dict[str, list[Shard]]:
        """Returns host copies of variables and slots, each in its different pieces."""
        if self._reader is None:
            self._reader = StateReader(self._state.saved)
        return self._reader.shards()

    def _assign(self, values: Mapping[str, Array]) -> None:
        self._state.assign(values)

    def plain_model(self) -> Model:
        """Returns the plain model with the present weights, or their averages."""
        with self._state.averaged():
            return self._adapter.exported({path: unpack(v) for path, v in self._state.variables.items()})


make = DTensorEngine  # see `runner.engine.registry`


def _stored(variables: Mapping[str, tf.Variable]) -> dict[str, tf.Variable]:
    """Returns the variables behind those that layers of mixed precision read in another type."""
    return {path: uncast(variable) for path, variable in variables.items()}
