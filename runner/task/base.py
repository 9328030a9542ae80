"""The protocol between tasks and the rest of the runner. Imports neither TensorFlow nor JAX."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec, Batch, DataSource
from runner.data.vocabulary import Vocabulary
from runner.task.metrics import LOSS_NAME

# Computes `Task.next_logits`, float32 (B, V), of a batch's arrays (B, ...).
Ask = Callable[[Batch], Array]
# The float32 outputs of a model: one tensor (B, ...), or several by name or in a sequence.
Outputs = Any
# Shapes of a model's outputs by name, the batch dim first; of a single output any name.
Shapes = Mapping[str, Sequence[int | None]]
# A cell of a table; None: unknown.
Cell = str | float | int | None
# Column names, and rows.
Table = tuple[Sequence[str], Sequence[Sequence[Cell]]]

LOSS = LOSS_NAME
# Metric of an evaluation: its loss without the losses that layers add, where there are any.
TASK_LOSS = "task_loss"
# Largest value of a byte, which images are divided by.
BRIGHTEST = 255.0
# Name of the decision whether they are, 1 or 0, among `Task.constants`.
SCALED = "scale_images"


def is_bytes(spec: ArraySpec) -> bool:
    """Returns whether an array is an image of bytes, which a step may scale to [0, 1]."""
    return spec.is_image and spec.dtype == "uint8"


def model_dtype(spec: ArraySpec) -> str:
    """Returns the dtype of an array as a model's input: float32 for floats, bools and images, else its own."""
    is_float_or_bool = np.dtype(spec.dtype).kind in "bf"
    if is_bytes(spec) or is_float_or_bool:
        return "float32"
    return spec.dtype


def named_outputs(outputs: Outputs) -> dict[str, Tensor]:
    """Returns a model's outputs by name: a single one is `outputs`, those of a sequence `output_0`, `output_1`, ...

    Keras gives them these names when it exports a model. The names of nested outputs are joined by `_`.
    """
    if not isinstance(outputs, Mapping | list | tuple):
        return {"outputs": outputs}
    if not isinstance(outputs, Mapping):
        outputs = {f"output_{index}": value for index, value in enumerate(outputs)}
    flat: dict[str, Tensor] = {}
    for name, value in outputs.items():
        if isinstance(value, Mapping | list | tuple):
            for inner_name, tensor in named_outputs(value).items():
                flat[f"{name}_{inner_name}"] = tensor
        else:
            flat[str(name)] = value
    return flat


@dataclass(frozen=True)
class OutputSpec:
    """The output that a task needs from a model."""

    # Size of the last dim; None: any size.
    units: int | None
    # Names of the units, such as class names; empty: they have none.
    names: tuple[str, ...] = ()
    # The outputs that the task needs by name; empty: it needs a single one.
    by_name: Mapping[str, OutputSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Metrics over every example of a split.

    Attributes:
      metrics: `loss` and the task's metrics by name, in the task's order. As Keras's `val_loss`, the loss includes the
        losses that layers add, and no class weights; if layers add any, `task_loss` is without them.
      examples: number of examples.
      totals: float64 sums over all batches by name: of `Task.addends`, and of `loss` and `weight`.
      outputs: float32 (examples, ...), the model's outputs in the order of the split; empty if they were not kept, or
        if there are several.
      named_outputs: outputs by name, see the function `named_outputs`, for a model with several outputs; else empty.
      mixes_rows: whether they depend on which examples are together in a batch, see `Engine.mixes_rows`.
    """

    metrics: Mapping[str, float]
    examples: int
    totals: Mapping[str, Array]
    outputs: Array
    named_outputs: Mapping[str, Array] = field(default_factory=dict)
    mixes_rows: bool = False

    @property
    def loss(self) -> float:
        """Mean loss."""
        return self.metrics[LOSS]


@dataclass(frozen=True)
class Report:
    """Files by name, such as `confusion.png`, each with what writes it to a path; and tables by title."""

    files: Mapping[str, Callable[[Path], None]]
    tables: Mapping[str, Table]


@dataclass(frozen=True)
class TaskData:
    """What a task is made from, in addition to its config.

    Attributes:
      train: split that class weights and similar constants are computed from; None: they must be in `constants`.
      constants: `Task.constants` of the run that is resumed or evaluated; empty for a new run.
      vocabulary: meaning of the tokens of a text dataset; None: the dataset has none.
    """

    arrays: Mapping[str, ArraySpec]
    train: DataSource | None = None
    constants: Mapping[str, Sequence[float]] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None


class Task(ABC):
    """Loss and metrics of named arrays. A run has one, made by `runner.task.registry.make_task`; it has no state.

    Its functions of tensors take the engine's array namespace, so they are written once for every engine. They are
    traced: their results depend on their arguments only, and elementwise on the examples except in `totals`.

    Attributes:
      arrays: specs of the arrays that a batch must have, by name, without arrays of the dataset that the task ignores.
      input_names: names of the arrays that the model takes.
      outputs: the output that the model must have.
      directions: each metric of an evaluation, `loss` first -> `maximize` or `minimize`.
      step_metrics: names of the results of `metrics`, which every training step has in addition to the loss.
      constants: numbers computed from the train split, JSON-serializable. A checkpoint has them, because a run that is
        evaluated on other data must use those that it was trained with.
      masked_input: name of the input whose zeros are not counted, as the mask of the model's output says; None: an
        output with a mask is rejected.
      keeps_outputs: whether an evaluation may return the model's outputs; False if they are too large.
      tokens: number of tokens per example, for a task that counts in tokens; 0: it does not.
      reads_batch: whether the loss or a metric of an example may depend on the other rows of its batch. An evaluation
        then computes both without any row of padding, and a training whose padding would count is rejected.
      runs_user_code: whether its functions call functions of the user.
      own_step: whether a user's class computes updates and metrics, with optimizers of its own; then `loss`, `metrics`
        and `totals` are never called.
      of_model: whether the model's own `compile` has the loss, the metrics, which are known once a model is built, and
        the optimizer. Its functions take traced arrays of JAX alone.
      pads: whether training pads batches, as far as the engine has decided it.
      scales_by_model: `task.scale_images=auto`.
      scale_images: whether the bytes of images are divided by 255; None: no model has been built yet that
        shows it, see `runner.model.preprocessing`.
    """

    arrays: Mapping[str, ArraySpec]
    input_names: tuple[str, ...]
    outputs: OutputSpec
    directions: Mapping[str, str]
    step_metrics: tuple[str, ...]
    constants: Mapping[str, Sequence[float]]
    masked_input: str | None = None
    keeps_outputs: bool = True
    tokens: int = 0
    reads_batch: bool = False
    runs_user_code: bool = False
    own_step: bool = False
    of_model: bool = False
    pads: bool = False
    # Factors of the loss by class, see `without_class_weights`; None: the task has none.
    _class_weights: Any = None
    scales_by_model: bool = False
    scale_images: bool | None = None

    @abstractmethod
    def __init__(self, config: TaskConfig, options: Any, data: TaskData) -> None:
        """Settles what the arrays are; see `runner.task.registry.make_task`.

        Raises:
          ConfigError: the dataset does not have the arrays that the task needs.
        """

    @classmethod
    @abstractmethod
    def metric_directions(cls, options: Any) -> dict[str, str]:
        """Returns the metrics of an evaluation except the loss, by name -> `maximize` or `minimize`."""

    @classmethod
    def step_metric_names(cls, options: Any) -> tuple[str, ...]:
        """Returns the names of the metrics of a training step except the loss."""
        del options
        return cls.step_metrics

    @classmethod
    def check_options(cls, options: Any) -> None:
        """Checks the task's options without a dataset. Raises ConfigError if a value is invalid."""
        # By default, the schema has checked each of them, and none depends on another.
        del options

    def without_class_weights(self) -> Task:
        """Returns the task as an evaluation uses it: as in Keras, class weights are for training alone."""
        if self._class_weights is None:
            return self
        task = copy.copy(self)
        task._class_weights = None
        return task

    @property
    def first_image(self) -> str | None:
        """Name of the first input that is an image; None: none is."""
        return next((name for name in self.input_names if self.arrays[name].is_image), None)

    @property
    def byte_images(self) -> list[str]:
        """Names of the inputs that are images of bytes."""
        return [name for name in self.input_names if is_bytes(self.arrays[name])]

    def decide_scaling(self, *, scale: bool) -> None:
        """Sets whether images are scaled, for `task.scale_images=auto`; a checkpoint keeps it."""
        self.scale_images = scale
        self.constants = {**self.constants, SCALED: [float(scale)]}

    @property
    def scaling_line(self) -> str:
        """The line of a run that says what the model gets for the bytes of images; empty without any."""
        if not self.byte_images:
            return ""
        given = "divided by 255"
        why = ", as no first layer rescales them (task.scale_images=auto)"
        if self.scale_images is False:
            given = "of 0 to 255"
            why = ", which the model rescales (task.scale_images=auto)"
        if not self.scales_by_model:
            why = f" (task.scale_images={str(self.scale_images).lower()})"
        return f"images: bytes {given}{why}"

    def inputs(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the model's inputs: the array of a single input, or several arrays by name; images as it takes them.

        Args:
          batch: arrays (B, ...) by name.
        """
        scaled = {name: self._scaled(ops, name, batch[name]) for name in self.input_names}
        if len(scaled) > 1:
            return scaled
        return scaled[self.input_names[0]]

    def _scaled(self, ops: Arrays, name: str, array: Tensor) -> Tensor:
        """Returns floats as float32, the bytes of an image in [0, 1] or as they are, and integers unchanged."""
        spec = self.arrays[name]
        if is_bytes(spec) and self.scale_images is not False:
            return ops.cast(array, "float32") / BRIGHTEST
        if model_dtype(spec) == spec.dtype:
            return array
        return ops.cast(array, model_dtype(spec))

    def input_specs(self) -> dict[str, ArraySpec]:
        """Returns the specs of the model's inputs by name, with the dtypes that the model takes."""
        specs = {}
        for name in self.input_names:
            spec = self.arrays[name]
            specs[name] = replace(spec, dtype=model_dtype(spec))
        return specs

    def weights(self, batch: Batch) -> Array:
        """Returns float32 (..., B), the weight of each example in the means of a step: its number of loss terms.

        Computed on the host before the step, so that the sum of the weights needs no collective. 0 for padding.
        """
        return np.asarray(batch[WEIGHT], np.float32)

    @property
    def weighs_arrays(self) -> bool:
        """Whether `weights` reads other arrays than `weight`, which marks padding."""
        return type(self).weights is not Task.weights

    def counted_terms(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B,), `weights` of a batch on the devices."""
        return ops.cast(batch[WEIGHT], "float32")

    def mean_loss(self, totals: Mapping[str, Array]) -> float:
        """Returns the mean loss of an evaluation."""
        return float(totals[LOSS]) / (float(totals[WEIGHT]) or 1.0)

    def reduced(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Outputs:
        """Returns what `loss`, `metrics` and `totals` are computed from; they accept a model's outputs as well.

        A task whose outputs are large computes its sums here, once for all three.
        """
        del ops, batch
        return outputs

    @abstractmethod
    def loss(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B,): the sum of each example's loss terms; `weights` is their number.

        The caller leaves out the rows of padding, whatever their values.
        """

    @abstractmethod
    def metrics(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns float32 (B,) by name: sums per example, averaged over a step's examples with the loss's weights."""

    @abstractmethod
    def totals(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns float32 arrays of a batch by name, for `addends`, without its padding."""

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the arrays to sum over the batches of an evaluation."""
        return dict(totals)

    def joined(self, sums: Mapping[str, Array], addends: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the sums over some batches and one more."""
        return {name: sums[name] + addend for name, addend in addends.items()}

    @abstractmethod
    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics except `loss`, in the order of `directions`."""

    @abstractmethod
    def check(self, shapes: Shapes) -> None:
        """Checks the outputs of a model. Raises ConfigError if the loss can't be computed from them."""

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks the targets of a split if they can be read without computing every example."""
        del source, split

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns pictures and tables of an evaluation, beside its metrics."""
        del evaluation, source, split
        return Report({}, {})

    def sample(self, ask: Ask, step: int, seed: int, multiple: int = 1) -> str | None:
        """Returns text that the model samples, to be recorded; None if the task or the config has no samples.

        `ask` computes `next_logits` of a batch, whose size `multiple` must divide. The draws depend on `seed` and
        `step`, the number of training steps done.
        """
        del ask, step, seed, multiple
        return None

    def next_logits(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, V), the logits that `sample` needs; only for a task that has samples."""
        raise NotImplementedError

    def predictions(self, ops: Arrays, outputs: Outputs) -> dict[str, Tensor]:
        """Returns the outputs of an exported model by name."""
        del ops
        return named_outputs(outputs)

    def warnings(self, evaluation: Evaluation) -> list[str]:
        """Returns warnings about the outputs of an untrained model."""
        del evaluation
        return []


@dataclass(frozen=True)
class DataSpec:
    """The arrays of a batch, without `weight`, and the task that an engine is built for."""

    arrays: Mapping[str, ArraySpec]
    task: Task

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """Specs of the model's inputs by name."""
        return self.task.input_specs()
