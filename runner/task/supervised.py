"""Supervised tasks: the roles of a dataset's arrays, sample weights, and functions that several tasks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import TaskConfig
from runner.data.base import TARGETS, WEIGHT, Array, ArraySpec, DataSource
from runner.errors import ConfigError, did_you_mean, invalid, listed
from runner.task import keras_metrics, losses
from runner.task.base import LOSS, Cell, Evaluation, Outputs, Shapes, Table, Task, TaskData
from runner.task.keras_metrics import Compared
from runner.task.metrics import MINIMIZE

# Names of the sums of tasks of classes: the confusion matrix (C, C), whose rows are labels, or with many classes its
# diagonal and its sums.
CONFUSION = "confusion"
RIGHT = "right"
LABELS = "labels"
PREDICTED = "predicted"
# Examples that are read at a time from a source without whole columns: more would need memory for images that are
# then dropped, fewer would call the source more often.
_BLOCK = 256
# Tolerance of a sum of probabilities over the classes; bfloat16 has 8 bits of precision.
_ROUNDING = 1e-2
# Examples from which the outputs of an untrained model show whether they are of a sigmoid, whose mean starts near 0.5.
# Logits start near 0; those of fewer examples may all be between 0 and 1 by chance.
_ENOUGH = 8


def default_target(arrays: Mapping[str, ArraySpec]) -> tuple[str, ...]:
    """Returns the target of a config that names none: the first of `TARGETS` that the dataset has, or nothing."""
    for name in TARGETS:
        if name in arrays:
            return (name,)
    return ()


def _check_exist(key: str, names: Sequence[str], arrays: Mapping[str, ArraySpec]) -> None:
    for name in names:
        if name not in arrays:
            fix = did_you_mean(name, arrays, "name one of these")
            raise invalid(key, name, problem=no_array(name, arrays), fix=fix)


def no_array(name: str, arrays: Mapping[str, ArraySpec]) -> str:
    """Returns the problem of a key that names an array which the dataset lacks."""
    return f"the dataset has no array {name!r} (its arrays: {listed(arrays)})"


class Supervised(Task):
    """A task with a target, inputs to predict it from, and perhaps sample weights.

    Attributes:
      own_metrics: the metrics that it always has, except the loss, with the better direction of each.
      compares: what Keras's losses and metrics compare, see `keras_metrics`; empty: the config chooses none of them.
      activation: function in `Arrays` that makes probabilities of the model's logits.
      target_names: arrays that are predicted.
    """

    own_metrics: ClassVar[Mapping[str, str]] = {}
    compares: ClassVar[str] = ""
    activation: str = losses.SOFTMAX
    # Whether sample weights may have dims after the first.
    weighs_positions: bool = False
    # Loss of Keras that the config chooses, of a target and the model's outputs; None: the task's own.
    _loss: losses.Loss | None = None

    @classmethod
    def compared_by(cls, options: Any) -> str:
        """Returns `compares`, which options may decide."""
        del options
        return cls.compares

    @classmethod
    def metric_directions(cls, options: Any) -> dict[str, str]:
        """Returns the task's own metrics, and those of Keras that the config chooses."""
        compared = cls.compared_by(options)
        if not compared:
            return dict(cls.own_metrics)
        return {**cls.own_metrics, **keras_metrics.directions(options.metrics, compared, cls.own_metrics)}

    @classmethod
    def check_options(cls, options: Any) -> None:
        """Checks the names of Keras's loss and metrics."""
        compared = cls.compared_by(options)
        if compared:
            losses.check_chosen(options.loss, options.loss_options)
            keras_metrics.requested(options.metrics, compared, cls.own_metrics)

    def __init__(self, config: TaskConfig, options: Any, data: TaskData, *, needs_target: bool = True) -> None:
        """Settles the roles of the arrays.

        Raises:
          ConfigError: the dataset does not have an array that the config names, or has none for a role.
        """
        arrays = data.arrays
        names = f"the dataset has {listed(arrays)}"
        target = tuple(config.target) or default_target(arrays)
        weight = config.example_weight
        weights: list[str] = []
        if weight is not None:
            weights.append(weight)
        _check_exist("task.target", target, arrays)
        _check_exist("task.inputs", config.inputs or (), arrays)
        _check_exist("task.example_weight", weights, arrays)
        if needs_target and not target:
            example = next(iter(arrays), "price")
            problem = f"{names}, of which none is named {', '.join(TARGETS[:-1])} or {TARGETS[-1]}"
            fix = f"name the array to predict, such as task.target={example}"
            raise invalid("task.target", None, problem=problem, fix=fix)
        inputs = config.inputs
        if inputs is None:
            inputs = [name for name in arrays if name not in {*target, weight}]
        if not inputs:
            fix = "name one, or remove task.inputs to use every array except the target"
            raise invalid("task.inputs", config.inputs, problem=f"needs at least one array; {names}", fix=fix)
        if weight is not None and not is_one_number(arrays[weight]) and not self.weighs_positions:
            problem = f"must be an array of one number per example, but its shape is {list(arrays[weight].shape)}"
            raise invalid("task.example_weight", weight, problem=problem, fix="name another array, or remove it")
        self.arrays = {name: arrays[name] for name in (*inputs, *target, *weights)}
        self.input_names = tuple(inputs)
        self.target_names = target
        self.directions = {LOSS: MINIMIZE, **self.metric_directions(options)}
        self.step_metrics = self.step_metric_names(options)
        self.constants: Mapping[str, Sequence[float]] = {}
        self._options = options
        self._example_weight = weight

    def _settle_keras(self, size: int) -> None:
        """Takes the loss and the metrics of Keras that the config chooses; `size`: of the target's last dim."""
        options = self._options
        activation = self.activation if options.from_logits else None
        self._loss = losses.of_model(options.loss, options.loss_options, activation)
        self._keras_metrics = keras_metrics.KerasMetrics(
            options.metrics,
            self.compared_by(options),
            self.own_metrics,
            size,
            has_example_weight=self._example_weight is not None,
        )

    def _comparison(
        self,
        ops: Arrays,
        outputs: Tensor,
        batch: Mapping[str, Tensor],
        target: Tensor,
        weight: Tensor,
        label: Tensor | None = None,
    ) -> Compared:
        """Returns what Keras's metrics compare; see `Compared` for target, weight and label."""
        logits = outputs if self._options.from_logits else None
        prediction = self._probabilities_of(ops, outputs)
        return Compared(target, prediction, weight, label, logits, self._example_weights(ops, batch))

    def _probabilities_of(self, ops: Arrays, outputs: Tensor) -> Tensor:
        if not self._options.from_logits:
            return outputs
        return getattr(ops, self.activation)(outputs)

    def predictions(self, ops: Arrays, outputs: Outputs) -> dict[str, Tensor]:
        """Returns the logits, if the model returns them, the probabilities, and the most probable class of several."""
        if not self.compares:
            return super().predictions(ops, outputs)
        predictions = {}
        if self._options.from_logits:
            predictions["logits"] = outputs
        predictions["probabilities"] = self._probabilities_of(ops, outputs)
        if self.compares == keras_metrics.CLASSES:
            predictions["class"] = ops.argmax(outputs, -1)
        return predictions

    def warnings(self, evaluation: Evaluation) -> list[str]:
        """Returns a warning if the outputs of an untrained model contradict `task.from_logits`."""
        outputs = evaluation.outputs
        if not self.compares or not outputs.size:
            return []
        has_logits = self._options.from_logits
        # False for NaN.
        is_inside = bool(((outputs >= 0) & (outputs <= 1)).all())
        if not has_logits and not is_inside:
            problem = "task.from_logits=false, but the model's outputs are not from 0 to 1"
            return [f"{problem}; remove task.from_logits, or end it in an activation"]
        is_activated = np.allclose(outputs.sum(axis=-1), 1.0, rtol=0, atol=_ROUNDING)
        if self.activation == losses.SIGMOID:
            is_activated = len(outputs) >= _ENOUGH and 0.3 < float(outputs.mean()) < 0.7
        if has_logits and is_inside and is_activated:
            problem = f"the model's outputs are from 0 to 1, as after a {self.activation}"
            return [f"{problem}; set task.from_logits=false, or remove the activation"]
        return []

    def _sole_target(self, problem: str, fix: str = "name one array") -> str:
        if len(self.target_names) != 1:
            raise invalid("task.target", list(self.target_names), problem=problem, fix=fix)
        return self.target_names[0]

    def _example_weights(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Returns the sample weights, float32 (B,), or None if the config names no array of them."""
        if self._example_weight is None:
            return None
        return as_vector(ops, ops.cast(batch[self._example_weight], "float32"))

    def _weighted(self, ops: Arrays, loss_b: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,) times its sample weight, if the config names an array of them."""
        weight_b = self._example_weights(ops, batch)
        if weight_b is None:
            return loss_b
        return loss_b * weight_b


def is_one_number(spec: ArraySpec) -> bool:
    """Returns whether an array has one number per example."""
    return spec.shape in ((), (1,))


def only_shape(shapes: Shapes) -> Sequence[int | None]:
    """Returns the shape of a model's only output. Raises ConfigError if it has several."""
    if len(shapes) > 1:
        found = ", ".join(str(list(shape)) for shape in shapes.values())
        raise ConfigError(
            f"model._target_: the model has {len(shapes)} outputs of shapes {found}, but the task takes one; set "
            "task=several, which gives each output a task of its own, or return a single output"
        )
    return next(iter(shapes.values()))


def check_output(shapes: Shapes, expected: Sequence[int], meaning: str) -> None:
    """Checks that a model has one output of a shape, without the batch dim. Raises ConfigError if not."""
    shape = only_shape(shapes)
    if tuple(shape[1:]) != tuple(expected):
        sizes = ", ".join(map(str, expected))
        kind = "size" if len(expected) == 1 else "shape"
        raise ConfigError(
            f"model._target_: the model's output must be [batch, {sizes}], {meaning}, but is {list(shape)}; end the "
            f"model in a layer of that {kind}"
        )


def as_vector(ops: Arrays, x: Tensor) -> Tensor:
    """Returns an array (B,) or (B, 1) as (B,)."""
    if len(x.shape) == 1:
        return x
    # A sum over one number, not an index: DTensor computes some indices of sharded arrays wrongly.
    return ops.sum(x, axis=-1)


def is_real(ops: Arrays, batch: Mapping[str, Tensor], rank: int = 1) -> Tensor:
    """Returns bool (B, 1, ...) of a rank, False for padding."""
    real = ops.greater(batch[WEIGHT], 0.0)
    for _ in range(rank - 1):
        real = ops.expand_dims(real, -1)
    return real


def counted(ops: Arrays, batch: Mapping[str, Tensor], values: Tensor, axis: Sequence[int]) -> Tensor:
    """Returns float32 sums of bools or numbers (B, ...) over the examples and perhaps other dims, without padding."""
    values = ops.cast(values, "float32")
    # Selected, not multiplied by the weight: the model's outputs for padding may be NaN, and NaN * 0 is NaN.
    without_padding = ops.where(is_real(ops, batch, len(values.shape)), values, ops.zeros_like(values))
    return ops.sum(without_padding, axis=tuple(axis))


def as_counts(totals: Array) -> Array:
    """Returns sums of ones and zeros as int64."""
    return np.rint(totals).astype(np.int64)


def ratio(part: Array, whole: Array) -> Array:
    """Returns part / whole, 0 where the whole is 0."""
    return np.asarray(np.where(whole > 0, part, 0.0) / np.where(whole > 0, whole, 1.0))


def f1(found: Array, positives: Array, predicted: Array) -> Array:
    """Returns the F1 score, which is the Dice coefficient, 0 without any label or prediction."""
    return ratio(2.0 * found, positives + predicted)


def shares(part: Array, whole: Array) -> list[Cell]:
    """Returns part / whole as cells of a table, None where the whole is 0."""
    cells: list[Cell] = []
    for numerator, denominator in zip(part, whole, strict=True):
        cells.append(float(numerator / denominator) if denominator else None)
    return cells


def by_class(totals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Returns float64 counts per class (C,): what is predicted correctly, labels, and predictions."""
    if CONFUSION in totals:
        matrix = totals[CONFUSION]
        return np.diag(matrix), matrix.sum(1), matrix.sum(0)
    return totals[RIGHT], totals[LABELS], totals[PREDICTED]


def class_table(names: Sequence[str], right: Array, examples: Array, predicted: Array) -> Table:
    """Returns the precision and recall of each class, of counts (C,)."""
    precision = shares(right, predicted)
    recall = shares(right, examples)
    rows = zip(names, precision, recall, as_counts(examples).tolist(), as_counts(predicted).tolist(), strict=True)
    return ("class", "precision", "recall", "examples", "predicted"), list(rows)


def read_columns(source: DataSource, names: Sequence[str], count: int | None = None) -> dict[str, Array]:
    """Returns whole arrays of a split's first `count` examples, in its order; None: of all.

    What a source has as a whole is not read example by example.
    """
    size = source.size if count is None else min(count, source.size)
    whole = {}
    for name in names:
        column = source.column(name)
        if column is not None:
            whole[name] = np.asarray(column[:size])
    if whole.keys() == set(names):
        return whole
    # The empty arrays give the shape and dtype of a split without examples.
    blocks = {name: [np.zeros((0, *source.specs[name].shape), source.specs[name].dtype)] for name in names}
    for start in range(0, size, _BLOCK):
        block = source.read(np.arange(start, min(start + _BLOCK, size)))
        for name in names:
            blocks[name].append(block[name])
    return {name: np.concatenate(arrays) for name, arrays in blocks.items()}


def columns(ops: Arrays, batch: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Returns float32 (B, K) of K arrays (B,) or (B, 1), or (B, ...) of one array that has more dims."""
    arrays = []
    for name in names:
        array = ops.cast(batch[name], "float32")
        if len(array.shape) == 1:
            array = ops.expand_dims(array, -1)
        arrays.append(array)
    if len(arrays) == 1:
        return arrays[0]
    return ops.concatenate(arrays, axis=1)


def counted_sum(ops: Arrays, values: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """Returns the sums (B,) of values (B, *P) times their weights, over the positions *P whose count is above 0."""
    # Selected, not only multiplied by 0: the values of padding may be NaN.
    selected = ops.where(ops.greater(counts, 0.0), values, ops.zeros_like(values))
    return ops.sum(selected * ops.cast(weights, selected.dtype), axis=tuple(range(1, len(values.shape))))
