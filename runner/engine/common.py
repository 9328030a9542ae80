"""What all engines have in common: the order of a build, gradients in rounds, evaluation, the loading of a state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from runner import layout
from runner.config.schema import LayoutConfig, RunConfig
from runner.data.base import Array
from runner.engine import calls, evaluation
from runner.engine.base import Collective, Engine, HostBatches, PlacedBatches, shape_of
from runner.host import stages
from runner.layout.inputs import input_specs
from runner.task.base import LOSS, DataSpec, Evaluation

T = TypeVar("T")  # an array on the engine's devices


class MeshEngine(Engine, Generic[T]):
    """The part of an engine that needs no library."""

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int, *, planning: bool = False) -> None:
        """Takes what `runner.engine.registry.make_engine` is given."""
        self._config = config
        self._data = data
        self._total_steps = total_steps
        self._planning = planning
        self._axes = config.mesh.axes
        self._microbatches = config.trainer.accumulate_steps
        self._microbatch_size = config.dataset.batch_size // self._microbatches
        self._array_specs = input_specs(config.layout, data.arrays, self._axes)
        # Gradients are summed over these axes, activations over the others.
        self._data_axes = {axis for spec in self._array_specs.values() for axis in spec if axis}

    def build(self) -> None:
        """Makes devices, mesh, model and slots, and places them.

        Raises:
          ConfigError: a layout that does not fit the model, or a builder that fails.
          EngineError: the mesh computes wrong numbers.
        """
        with stages.stage("building the model"):
            self._make_devices()
            shapes = self._make_model()
            self.placements = layout.resolve(self._layout(), shapes, self._axes)
            self._make_state()
            self._make_programs()

    @abstractmethod
    def _make_devices(self) -> None:
        """Makes the devices; must be the process's first use of them."""

    @abstractmethod
    def _make_model(self) -> Mapping[str, tuple[int, ...]]:
        """Makes and checks the model, and returns its variables' shapes by canonical path."""

    def _layout(self) -> LayoutConfig:
        """Returns the layout of the model's variables; an engine may add to the config's rules what the model says."""
        return self._config.layout

    @abstractmethod
    def _make_state(self) -> None:
        """Places variables and slots as `placements` says, on a mesh whose arithmetic is checked if in doubt."""

    @abstractmethod
    def _make_programs(self) -> None:
        """Prepares what is traced later."""

    @abstractmethod
    def _gradient_round(self, batches: PlacedBatches, step: int, index: int) -> Sequence[Array]:
        """Returns one micro-batch's share of the gradients of the first step's loss, in the order of `trainable`."""

    @abstractmethod
    def _start_evaluation(self, batch: HostBatches, examples: int | None) -> evaluation.BatchResult[T]:
        """Begins to compute a batch, without dropout and the like.

        Args:
          batch: K = 1.
          examples: the task's functions are given that many of its rows, the first ones, in place of all; of other
            rows the loss is 0. The model is called with all. Only of a task that has `reads_batch`.
        """

    @abstractmethod
    def _to_host(self, value: T) -> Array:
        """Waits for what is on the devices and returns it whole."""

    @abstractmethod
    def _assign(self, values: Mapping[str, Array]) -> None:
        """Sets all variables and slots from whole arrays of their shapes, see `runner.engine.base.part_of`."""

    def _averaged_weights(self) -> AbstractContextManager[None]:
        """Lets the model compute with the averages of its weights, where the run keeps them."""
        return nullcontext()

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns the first batch's whole gradients; the state stays as it is."""
        placed = self.place(calls.first(batches))
        rounds = [self._gradient_round(placed, step, index) for index in range(self._microbatches)]
        sums = [np.array(sum(found)) for found in zip(*rounds, strict=True)]
        return dict(zip(self.trainable, sums, strict=True))

    def evaluate(self, batches: Iterable[HostBatches], *, keep_outputs: bool = False) -> Evaluation:
        """Evaluates batch by batch; each is read when the next has been started."""
        task = self._data.task

        def start(batch: HostBatches) -> evaluation.BatchResult[T]:
            return self._start_evaluation(batch, evaluation.examples_of(batch) if task.reads_batch else None)

        with self._averaged_weights():
            return evaluation.evaluate(task, batches, start, self._to_host, keep_outputs=keep_outputs)

    def with_and_without_padding(self, batch: HostBatches) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns what the task's functions give for a batch, with its padding before their eyes and without."""
        count = evaluation.examples_of(batch)

        def read(examples: int | None) -> dict[str, Array]:
            result = self._start_evaluation(batch, examples)
            loss_b = np.asarray(self._to_host(result.loss))[:count]
            return {LOSS: loss_b} | {name: self._to_host(total) for name, total in result.totals.items()}

        with self._averaged_weights():
            return read(None), read(count)

    def next_logits(self, batch: HostBatches) -> Array:
        """Returns float32 (B, V), the logits that the task's `next_logits` takes of the model's outputs."""
        with self._averaged_weights():
            return self._to_host(self._start_next_logits(batch))

    @abstractmethod
    def _start_next_logits(self, batch: HostBatches) -> T:
        """Begins to compute them, without dropout and the like."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Sets variables and slots.

        Raises:
          ValueError: a path that is missing or unknown, or an array of another shape.
        """
        own = self.variables()
        if set(own) != set(state):
            raise ValueError(f"state differs in {', '.join(sorted(set(own) ^ set(state)))}")
        for path, info in own.items():
            if info.shape != shape_of(state, path):
                raise ValueError(f"{path} has shape {info.shape}, the state has {shape_of(state, path)}")
        self._assign(state)

    def _per_step(self, found: Iterable[Collective]) -> list[Collective]:
        """Returns what a step communicates, of what each of its micro-batches does."""
        return [replace(c, count=c.count * self._microbatches, bytes=c.bytes * self._microbatches) for c in found]
