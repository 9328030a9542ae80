"""What the rest of the runner knows of a task. Imports neither TensorFlow nor JAX."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.data.base import WEIGHT, Array, ArraySpec, Batch, DataSource
from runner.task.namespace import Namespace

Tensor = Any  # an array of NumPy, TensorFlow or JAX
Outputs = Any  # float32: one tensor (B, ...), or tensors by name for a model of several outputs

MAXIMIZE, MINIMIZE = "maximize", "minimize"
LOSS = "loss"


@dataclass(frozen=True)
class OutputSpec:
    """What a task wants of a model.

    Attributes:
      units: size of the last dim of the model's output; None where the task takes any.
      names: of the units, as those of classes; empty where they have none.
    """

    units: int | None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """Metrics over every example of a split.

    Attributes:
      metrics: `loss` and the task's own, by name, in the task's order.
      examples: how many were counted.
      totals: float64 or int64 sums over all examples by name, as `Task.totals` made them, and `loss` and `weight`.
      outputs: float32 (examples, ...), the model's, in the split's order; empty where they were not kept.
    """

    metrics: Mapping[str, float]
    examples: int
    totals: Mapping[str, Array]
    outputs: Array

    @property
    def loss(self) -> float:
        """Mean loss."""
        return self.metrics[LOSS]


@dataclass(frozen=True)
class Report:
    """What a task shows of an evaluation.

    Attributes:
      files: file name -> what writes it, as `confusion.png`.
      tables: title -> (column names, rows), which `runner.evaluate` prints; numbers as numbers, None for unknown.
    """

    files: Mapping[str, Any]
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[Any]]]]


class Task(ABC):
    """Loss and metrics of named arrays. One is made a run, by `runner.task.make_task`, and holds no state.

    Its functions of tensors are given the engine's array namespace, so that one text serves every engine. They are
    traced: what they compute is a function of their arguments alone, elementwise over the examples but for `totals`.

    Attributes:
      arrays: specs of a batch's arrays by name.
      input_names: of the arrays that the model takes.
      outputs: what the model must give.
      directions: each metric of an evaluation, `loss` first -> `maximize` or `minimize`, whichever is better.
      step_metrics: names of what `metrics` returns, beside the loss that every step has.
    """

    arrays: Mapping[str, ArraySpec]
    input_names: tuple[str, ...]
    outputs: OutputSpec
    directions: Mapping[str, str]
    step_metrics: tuple[str, ...]

    def inputs(self, ops: Namespace, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns what the model takes: the array of the one input, or arrays by name; images in [0, 1].

        Args:
          ops: the engine's.
          batch: arrays (B, ...) by name.
        """
        taken = {name: self._scaled(ops, name, batch[name]) for name in self.input_names}
        return taken if len(taken) > 1 else taken[self.input_names[0]]

    def _scaled(self, ops: Namespace, name: str, array: Tensor) -> Tensor:
        """Returns float32 in [0, 1] of the bytes of an image, and everything else as it is."""
        spec = self.arrays[name]
        return ops.cast(array, "float32") / 255.0 if spec.is_image and spec.dtype == "uint8" else array

    def input_specs(self) -> dict[str, ArraySpec]:
        """Returns the specs of what the model takes, by name: images are float32 there."""
        specs = {name: self.arrays[name] for name in self.input_names}
        return {
            name: ArraySpec(s.shape, "float32", s.dims, s.names) if s.is_image and s.dtype == "uint8" else s
            for name, s in specs.items()
        }

    def weights(self, batch: Batch) -> Array:
        """Returns float32 (..., B), what each example counts for in the means of a step: its terms of the loss.

        On the host, and known before the step, so that its mean needs no collective. 0 of padding.

        Args:
          batch: arrays (..., B, *shape) by name.
        """
        return np.asarray(batch[WEIGHT], np.float32)

    @abstractmethod
    def loss(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B,): the sum of each example's terms of the loss, of which it has `weights`.

        Whatever a row of padding gives is left out by the caller.
        """

    @abstractmethod
    def metrics(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns float32 (B,) by name: sums of what is averaged over the steps' examples, weighed as the loss is."""

    @abstractmethod
    def totals(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns arrays by name that are added up over the batches of an evaluation; padding counts for nothing."""

    @abstractmethod
    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics beside `loss` of sums over all examples, in the order of `directions`."""

    @abstractmethod
    def check(self, shape: Sequence[int | None]) -> None:
        """Checks what a model gives for a batch.

        Args:
          shape: of the output, the batch's dim first.

        Raises:
          ConfigError: it is not what the loss takes.
        """

    @abstractmethod
    def report(self, evaluation: Evaluation, source: DataSource) -> Report:
        """Returns pictures and tables of an evaluation.

        Args:
          evaluation: of every example of the split; its outputs may be empty.
          source: the split.
        """

    def cautions(self, outputs: Array) -> list[str]:
        """Returns what the outputs of an untrained model tell that is wrong with it, in words.

        Args:
          outputs: float32 (examples, ...).
        """
        del outputs
        return []
