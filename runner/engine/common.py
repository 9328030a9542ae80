"""The base class of the engines: what the loop calls, and all of it that needs no library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from runner import arrays, layout
from runner.arrays import Tensor
from runner.config.schema import LayoutConfig, RunConfig
from runner.data.base import WEIGHT, Array, DataSource
from runner.engine import calls, evaluation
from runner.engine.base import (
    Collective,
    HostBatches,
    LayerOutput,
    PlacedBatches,
    PlainModel,
    ProgramCost,
    Shard,
    VariableInfo,
    shape_of,
)
from runner.engine.mappings import map_values
from runner.host import stages
from runner.layout import Placement, Spec
from runner.layout.axes import axes_of, axis_size
from runner.layout.inputs import input_specs
from runner.model import padding, target
from runner.task.base import LOSS, DataSpec, Evaluation, Outputs, named_outputs

# Trials of a model that mixes no rows as far as was seen: at the initial weights, and at the next evaluation.
_TRIALS = 2


def splits_examples_alone(array_specs: Mapping[str, Spec]) -> bool:
    """Returns whether no axis splits the dims of an example, such as height or tokens."""
    return not any(any(spec[1:]) for spec in array_specs.values())


class Engine(ABC):
    """Owns devices and state; computes steps.

    Attributes:
      placements: of every variable, by canonical path; set by `build`.
      counts_cost: the compiler counts a step's memory, operations and communication.
    """

    # The module of the library's functions, its map over trees, and its conversion of NumPy arrays.
    _library: tuple[ModuleType, Callable[..., Any], Callable[[Array], Any]]
    placements: Mapping[str, Placement]
    counts_cost = False

    @property
    def caches(self) -> bool:
        """Returns whether a split is kept on the devices; a batch then has `row`, its indices in the split."""
        return False

    @property
    def batch_axis(self) -> str | None:
        """Returns the mesh axis that shards the examples."""
        return self._array_specs[WEIGHT][0]

    def cache_on_device(self, source: DataSource) -> None:
        """Keeps a split that is in memory, if config and size allow it; before a step is compiled."""
        del source

    def saving(self) -> AbstractContextManager[None]:
        """Returns a context in which saving a model imports no further framework."""
        return nullcontext()

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int, *, planning: bool = False) -> None:
        self._config = config
        self._data = data
        self._total_steps = total_steps
        self._planning = planning
        self.axes = config.mesh.axes
        self._microbatches = config.trainer.accumulate_steps
        self._microbatch_size = config.dataset.batch_size // self._microbatches
        self._array_specs = input_specs(config.layout, data.arrays, self.axes)
        # Gradients are summed over these axes, activations over the others.
        self._data_axes = axes_of(self._array_specs.values())
        self._mixes_rows = False
        self._trials = 0

    def build(self) -> None:
        """Creates devices, model and slots; a ConfigError if layout and model don't fit."""
        with stages.stage("building the model"):
            # The libraries fix their devices at first use, so they come before the model. The model's shapes come
            # before the placements, which the state is created under.
            self._make_devices()
            shapes = self._make_model()
            self.placements = layout.resolve(self._layout(), shapes, self.axes)
            self._make_state()
            self._make_programs()

    @abstractmethod
    def _make_devices(self) -> None:
        """Creates the devices; must be the process's first use of them."""

    @abstractmethod
    def _make_model(self) -> Mapping[str, tuple[int, ...]]:
        """Creates and checks the model; returns its variables' shapes by canonical path."""

    def _layout(self) -> LayoutConfig:
        """Returns the layout of the variables: the config's, to which an engine may add the model's own rules."""
        return self._config.layout

    @abstractmethod
    def _make_state(self) -> None:
        """Places variables and slots as `placements` says."""

    @abstractmethod
    def _make_programs(self) -> None:
        """Prepares the functions that are traced later."""

    @abstractmethod
    def place(self, batches: HostBatches) -> PlacedBatches:
        """Puts batches on the devices, sharded as the layout says; may run on another thread than the steps."""

    @abstractmethod
    def compile(self, batches: PlacedBatches) -> None:
        """Compiles the step for batches of these shapes, without running it."""

    @abstractmethod
    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> calls.PendingCall[Any]:
        """Runs `batches.steps` training steps in one device call, after `first_step` earlier ones."""

    @abstractmethod
    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Returns a context whose operations are traced into a folder, as an XSpace for TensorBoard."""

    @property
    @abstractmethod
    def trainable(self) -> Sequence[str]:
        """Returns the canonical paths of the trainable variables."""

    @abstractmethod
    def layer_outputs(self) -> list[LayerOutput]:
        """Returns every layer's output for one microbatch, in the order of the calls."""

    @abstractmethod
    def used_whole(self) -> Collection[str]:
        """Returns the paths of variables that operations need whole on each device, however they are stored."""

    @abstractmethod
    def variables(self) -> Mapping[str, VariableInfo]:
        """Returns canonical path -> variable; slots are `optimizer/<slot>/<path>`, averages `ema/<path>`."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Returns whole host arrays of variables and slots by canonical path; a collective call of all processes."""

    @abstractmethod
    def shards(self) -> dict[str, list[Shard]]:
        """Returns the distinct shards of variables and slots by canonical path, valid until the next step.

        With several processes each returns its own; together they return every shard once.
        """

    def summary(self) -> str:
        """Returns Keras's table of the model's layers; of what is no Keras model, the variables and their shapes."""
        model: Any = getattr(self, "_model", None)
        lines: list[str] = []
        if hasattr(model, "summary"):
            model.summary(print_fn=lines.append)
        else:
            for path, placement in self.placements.items():
                lines.append(f"{path}  {placement.shape}")
        return "\n".join(lines) + "\n"

    @abstractmethod
    def plain_model(self, values: Mapping[str, Array] | None = None) -> PlainModel:
        """Returns the model on one device, of its framework's own layers, with these whole arrays by path.

        None: with the current weights or their EMA, which all processes gather. With values the engine may be unbuilt.
        """

    def collectives(self) -> list[Collective]:
        """Returns the collectives in the compiled step's program, if the engine `counts_cost`."""
        return []

    def program_cost(self) -> ProgramCost | None:
        """Returns the compiled program's cost; None if the compiler does not count it."""
        return None

    def saved_activations(self) -> list[tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each whole array that a microbatch's forward pass keeps in device memory.

        Like `attention_scores`, it is known of hardware that is not here only.
        """
        return []

    def attention_scores(self) -> list[list[tuple[tuple[int, ...], str]]]:
        """Returns shape and dtype of the whole scores of attention by block; fused attention has none."""
        return []

    @abstractmethod
    def _gradient_round(self, batches: PlacedBatches, step: int, index: int) -> Sequence[Array]:
        """Returns one microbatch's share of the gradients of the first step's loss, in the order of `trainable`."""

    @abstractmethod
    def _start_evaluation(self, batch: HostBatches) -> evaluation.BatchResult[Tensor]:
        """Starts a batch's evaluation, K = 1, in inference mode; on each device whole if the mesh can't divide it."""

    @abstractmethod
    def _to_host(self, value: Tensor) -> Array:
        """Waits for a device array and returns it as a whole host array."""

    @abstractmethod
    def _assign(self, values: Mapping[str, Array]) -> None:
        """Sets all variables and slots from whole arrays of their shapes, see `runner.engine.base.part_of`."""

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns whole, unclipped gradients of the first batch's loss by canonical path; no state changes."""
        placed = self.place(calls.first(batches))
        rounds = [self._gradient_round(placed, step, index) for index in range(self._microbatches)]
        gradients = {}
        # Each round gives its microbatch's share of the mean loss's gradients.
        for path, *shares in zip(self.trainable, *rounds, strict=True):
            gradients[path] = np.array(sum(shares))
        return gradients

    def evaluate(self, batches: Iterable[HostBatches], *, keep_outputs: bool = False) -> Evaluation:
        """Evaluates over every example of weight 1, with the EMA weights if the run keeps them."""
        task = self._data.task
        if self._mixes_rows or task.reads_batch:
            batches = map(evaluation.without_padding, batches)
        found = evaluation.evaluate(task, batches, self._start_evaluation, self._to_host, keep_outputs=keep_outputs)
        return replace(found, mixes_rows=self._mixes_rows)

    def mixes_rows(self, batch: HostBatches) -> bool:
        """Returns whether an example's evaluation, or a loss that layers add, depends on the other rows of its batch.

        Evaluations then leave out padding. The batch, K = 1, is one of an evaluation: it is evaluated with other
        examples in its padding, or else in its second half, and the rest is compared.
        """
        # The runner's own builders mix none. What mixes may be zero in the initial weights, so that the trained ones
        # of the next evaluation are tried too; then the answer stays.
        own_builder = target.is_own(self._config.model)
        if self._mixes_rows or own_builder or self._data.task.own_step or self._trials == _TRIALS:
            return self._mixes_rows
        rows = batch.weights.shape[1]
        kept = evaluation.examples_of(batch) or rows // 2
        if kept == 0:
            return False
        self._trials += 1

        def read(tried: HostBatches) -> list[Array]:
            result = self._start_evaluation(tried)
            values = []
            if not self._data.task.reads_batch:
                values.append(np.asarray(self._to_host(result.loss))[:kept])
            if result.added is not None:
                values.append(np.asarray(self._to_host(result.added)))
            for output in named_outputs(result.outputs).values():
                if output.shape and output.shape[0] == rows:
                    values.append(np.asarray(self._to_host(output))[:kept])
            return values

        first = read(batch)
        changed = read(evaluation.refilled(batch, kept))
        if padding.differ(first, changed, first):
            # What an equal call changes as well, such as a random number, is no mixing.
            self._mixes_rows = padding.differ(first, changed, read(batch))
        return self._mixes_rows

    def with_and_without_others(self, batch: HostBatches, kept: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns the task's results for a batch's first `kept` rows, computed from all rows, and from these alone.

        Of a task that has `reads_batch`: the `loss` of each row, and the task's totals by name.
        """
        # Not the model too: rounding differs between batches of two sizes, and most of all in bfloat16.
        outputs = self._start_evaluation(batch).outputs
        of_all = self._judged(outputs, batch, None)
        return of_all | {LOSS: of_all[LOSS][:kept]}, self._judged(outputs, batch, kept)

    def _judged(self, outputs: Outputs, batch: HostBatches, rows: int | None) -> dict[str, Array]:
        """Returns the loss (B,) and totals that the task's functions compute of so many first rows; None: of all."""
        size = batch.weights.shape[1]
        module, map_tree, constant = self._library

        def first(value: Any) -> Any:
            whole = np.asarray(self._to_host(value))
            # What has no row per example, such as a head's kernel, stays whole.
            return constant(whole[:rows] if whole.shape[:1] == (size,) else whole)

        outputs = map_tree(first, outputs)
        given = {name: constant(array[0][:rows]) for name, array in batch.arrays.items()}
        ops = arrays.of(module)
        task = self._data.task.without_class_weights()
        return map_values(np.asarray, {LOSS: task.loss(ops, outputs, given), **task.totals(ops, outputs, given)})

    @cached_property
    def _replicated_specs(self) -> dict[str, Spec]:
        """Specs of a batch's arrays if each device computes all examples."""
        return {name: (None, *spec[1:]) for name, spec in self._array_specs.items()}

    def _is_divided(self, batch: HostBatches) -> bool:
        rows: int = batch.weights.shape[1]
        return rows % axis_size(self.axes, self.batch_axis) == 0

    def next_logits(self, batch: HostBatches) -> Array:
        """Returns float32 (B, V), `Task.next_logits` of one batch, with the weights of an evaluation."""
        return self._to_host(self._start_next_logits(batch))

    @abstractmethod
    def _start_next_logits(self, batch: HostBatches) -> Tensor:
        """Starts the computation of these logits, in inference mode."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Sets variables and slots from whole arrays, see `part_of`; a ValueError unless they are `state()`'s."""
        variables = self.variables()
        if set(variables) != set(state):
            raise ValueError(f"state differs in {', '.join(sorted(set(variables) ^ set(state)))}")
        for path, info in variables.items():
            shape = shape_of(state, path)
            if info.shape != shape:
                raise ValueError(f"{path} has shape {info.shape}, the state has {shape}")
        self._assign(state)
