"""What the rest of the runner knows of a task. Imports neither TensorFlow nor JAX."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner.arrays import Arrays
from runner.data.base import WEIGHT, Array, ArraySpec, Batch, DataSource
from runner.errors import ConfigError, invalid

Tensor = Any  # an array of NumPy, TensorFlow or JAX
Ask = Callable[[Batch], Array]  # a batch's arrays (B, ...) -> float32 (B, V), what `Task.next_logits` gives of them
Outputs = Any  # float32: one tensor (B, ...), or what a model of several outputs gives: by name, or a sequence
Cell = str | float | int | None  # of a table; None: unknown
Table = tuple[Sequence[str], Sequence[Sequence[Cell]]]

LOSS = "loss"
BRIGHTEST = 255.0  # of an image's bytes


def is_bytes(spec: ArraySpec) -> bool:
    """Tells whether an array is an image of bytes, which a step scales to [0, 1]."""
    return spec.is_image and spec.dtype == "uint8"


def model_dtype(spec: ArraySpec) -> str:
    """Returns the dtype in which a model takes an array: float32 of fractions, bools and images, else its own."""
    return "float32" if is_bytes(spec) or np.dtype(spec.dtype).kind in "bf" else spec.dtype


def named_outputs(outputs: Outputs) -> dict[str, Tensor]:
    """Returns a model's outputs by name: one is `outputs`, those of a sequence are `output_0`, `output_1` and so on.

    These are the names that Keras gives them when it exports a model. What is nested is joined by `_`.
    """
    if isinstance(outputs, Mapping):
        items = [(str(name), value) for name, value in outputs.items()]
    elif isinstance(outputs, list | tuple):
        items = [(f"output_{number}", value) for number, value in enumerate(outputs)]
    else:
        return {"outputs": outputs}
    flat: dict[str, Tensor] = {}
    for name, value in items:
        if isinstance(value, Mapping | list | tuple):
            flat |= {f"{name}_{inner}": tensor for inner, tensor in named_outputs(value).items()}
        else:
            flat[name] = value
    return flat


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
      totals: float64 sums over all batches by name, of what `Task.addends` made, and `loss` and `weight`.
      outputs: float32 (examples, ...), the model's, in the split's order; empty if they were not kept, or are several.
      named_outputs: the same by name, see `named_outputs`, for a model of several outputs; else empty.
    """

    metrics: Mapping[str, float]
    examples: int
    totals: Mapping[str, Array]
    outputs: Array
    named_outputs: Mapping[str, Array] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Mean loss."""
        return self.metrics[LOSS]


@dataclass(frozen=True)
class Report:
    """What a task shows of an evaluation.

    Attributes:
      files: file name -> what writes it to a path, as `confusion.png`.
      tables: title -> (column names, rows), which `runner.evaluate` prints; numbers as numbers, None for unknown.
    """

    files: Mapping[str, Callable[[Path], None]]
    tables: Mapping[str, Table]


class Task(ABC):
    """Loss and metrics of named arrays. One is made a run, by `runner.task.registry.make_task`, and holds no state.

    Its functions of tensors are given the engine's array namespace, so that one text serves every engine. They are
    traced: what they compute is a function of their arguments alone, elementwise over the examples but for `totals`.

    Attributes:
      arrays: specs of the arrays that a batch must have, by name; not those of a dataset that the task does not read.
      input_names: of the arrays that the model takes.
      outputs: what the model must give.
      directions: each metric of an evaluation, `loss` first -> `maximize` or `minimize`, whichever is better.
      step_metrics: names of what `metrics` returns, beside the loss that every step has.
      constants: numbers that were computed from the train split, as JSON has them. A checkpoint keeps them, since a
        run that is evaluated on other data computes with those that it was trained with.
      keeps_outputs: whether an evaluation may give the model's outputs; False where they are too large.
      tokens: how many an example has, of a task that counts in them; 0: it does not.
      reads_batch: whether the loss or a metric of an example may depend on the other rows of its batch. An evaluation
        then computes both without any row of padding, and a training whose padding would count is rejected.
    """

    arrays: Mapping[str, ArraySpec]
    input_names: tuple[str, ...]
    outputs: OutputSpec
    directions: Mapping[str, str]
    step_metrics: tuple[str, ...]
    constants: Mapping[str, Sequence[float]]
    keeps_outputs: bool = True
    tokens: int = 0
    reads_batch: bool = False

    def inputs(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns what the model takes: the array of the one input, or arrays by name; images in [0, 1].

        Args:
          ops: the engine's.
          batch: arrays (B, ...) by name.
        """
        taken = {name: self._scaled(ops, name, batch[name]) for name in self.input_names}
        return taken if len(taken) > 1 else taken[self.input_names[0]]

    def _scaled(self, ops: Arrays, name: str, array: Tensor) -> Tensor:
        """Returns float32 of any fractions, in [0, 1] of the bytes of an image; and whole numbers as they are."""
        spec = self.arrays[name]
        if is_bytes(spec):
            return ops.cast(array, "float32") / BRIGHTEST
        return array if model_dtype(spec) == spec.dtype else ops.cast(array, model_dtype(spec))

    def input_specs(self) -> dict[str, ArraySpec]:
        """Returns the specs of what the model takes, by name, with the dtypes that it takes them in."""
        specs = {name: self.arrays[name] for name in self.input_names}
        return {name: replace(spec, dtype=model_dtype(spec)) for name, spec in specs.items()}

    def weights(self, batch: Batch) -> Array:
        """Returns float32 (..., B), what each example counts for in the means of a step: its terms of the loss.

        On the host, and known before the step, so that its mean needs no collective. 0 of padding.

        Args:
          batch: arrays (..., B, *shape) by name.
        """
        return np.asarray(batch[WEIGHT], np.float32)

    @property
    def weighs_arrays(self) -> bool:
        """Tells whether `weights` reads more than which examples are padding."""
        return type(self).weights is not Task.weights

    def reduced(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Outputs:
        """Returns what `loss`, `metrics` and `totals` compute with; they take a model's outputs as well.

        A task whose outputs are large makes its sums here, once for all three.

        Args:
          ops: the engine's.
          outputs: the model's, in the precision that it computes in.
          batch: arrays (B, ...) by name.
        """
        del ops, batch
        return outputs

    @abstractmethod
    def loss(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B,): the sum of each example's terms of the loss, of which it has `weights`.

        Whatever a row of padding gives is left out by the caller.
        """

    @abstractmethod
    def metrics(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns float32 (B,) by name: sums of what is averaged over the steps' examples, weighed as the loss is."""

    @abstractmethod
    def totals(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns float32 arrays by name of a batch, for `addends`; padding counts for nothing."""

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns what is added up over the batches of an evaluation.

        Args:
          totals: of one batch, float64, on the host.
        """
        return dict(totals)

    @abstractmethod
    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics beside `loss`, in the order of `directions`.

        Args:
          totals: sums over all batches of what `addends` gave.
        """

    @abstractmethod
    def check(self, shape: Sequence[int | None]) -> None:
        """Checks what a model gives for a batch.

        Args:
          shape: of the output, the batch's dim first.

        Raises:
          ConfigError: it is not what the loss takes.
        """

    def check_named(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        """Checks what a model of several outputs gives; a task that wants a number of units takes one output.

        Args:
          shapes: by name.

        Raises:
          ConfigError: it is not what the loss takes.
        """
        if self.outputs.units is not None:
            told = ", ".join(str(list(shape)) for shape in shapes.values())
            raise ConfigError(
                f"model._target_: the model gives {len(shapes)} outputs, of shapes {told}, and the task "
                "takes one; give one alone"
            )

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks the targets of a split, where they can be had without making every example.

        Args:
          source: the split.
          split: its name, for the refusal.

        Raises:
          ConfigError: one of them is none that the loss takes.
        """
        del source, split

    @abstractmethod
    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns pictures and tables of an evaluation.

        Args:
          evaluation: of the split's examples, from the first on; its outputs may be empty.
          source: the split.
          split: its name, for titles.
        """

    def sample(self, ask: Ask, step: int, seed: int, multiple: int = 1, prompt: str | None = None) -> str | None:
        """Returns what the model makes up, as text to be kept; None of a task whose models make up nothing.

        Args:
          ask: computes `next_logits` of a batch.
          step: training steps done.
          seed: of the run.
          multiple: what must divide a batch's size.
          prompt: what it begins with; null: as the config says.
        """
        del ask, step, seed, multiple, prompt
        return None

    def check_prompt(self, prompt: str) -> None:
        """Checks what `sample` is to begin with in place of what the config says.

        Raises:
          ConfigError: the task's models make up nothing, or not of this.
        """
        allowed = "the run's model writes no text: that needs task=language_model and a dataset with a vocabulary"
        raise invalid("evaluate.prompt", prompt, problem=allowed, fix="leave it out")

    def next_logits(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, V), what `sample` asks for; only of a task that makes something up."""
        raise NotImplementedError

    def predictions(self, ops: Arrays, outputs: Outputs) -> dict[str, Tensor]:
        """Returns what an exported model answers, by name.

        Args:
          ops: of the arrays that `outputs` are.
          outputs: the model's.
        """
        del ops
        return named_outputs(outputs)

    def cautions(self, outputs: Array) -> list[str]:
        """Returns what the outputs of an untrained model tell that is wrong with it, in words.

        Args:
          outputs: float32 (examples, ...).
        """
        del outputs
        return []


@dataclass(frozen=True)
class DataSpec:
    """What an engine is built for.

    Attributes:
      arrays: specs of a batch's arrays by name; `weight` is not among them.
      task: made of the same specs.
    """

    arrays: Mapping[str, ArraySpec]
    task: Task

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """Specs of what the model takes, by name."""
        return self.task.input_specs()
