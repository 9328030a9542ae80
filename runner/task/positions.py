# ruff: noqa: D102 - a task overrides what Task documents
"""One class per position: semantic segmentation of images, tagging of tokens, labels of time steps.

Means are over the counted positions of a step, whatever examples these are in. An example's loss is a sum, and its
weight the number of its counted positions, so a mean over the examples of a mesh is the mean over all positions.
Tokens of a language model count in the same way.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.arrays import Arrays, Tensor, token_losses
from runner.config.schema_task import PositionsOptions, TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec, Batch, DataSource
from runner.errors import ConfigError, invalid
from runner.host.late import late
from runner.layout.axes import SEQUENCE
from runner.task import classes, keras_metrics, losses
from runner.task.base import Evaluation, OutputSpec, Report, Shapes, Table, TaskData
from runner.task.keras_metrics import Compared
from runner.task.metrics import MAXIMIZE
from runner.task.supervised import (
    CONFUSION,
    LABELS,
    PREDICTED,
    RIGHT,
    Supervised,
    as_counts,
    by_class,
    counted_sum,
    default_target,
    f1,
    is_one_number,
    is_real,
    no_array,
    only_shape,
    ratio,
    read_columns,
    shares,
)

if TYPE_CHECKING:
    from runner.task import pictures
else:
    pictures = late("runner.task.pictures")

# Classes up to which the whole confusion matrix of each example is computed, C x C numbers: 16 KB for 64 classes. With
# more, labels and predictions are counted by class only.
_MOST_CONFUSED = 64
# Images of the report's picture: their predictions are read from the outputs of the split's first examples.
_SHOWN = 6
# More classes than this in integers whose classes nobody names are most likely tokens or amounts.
_MOST_CLASSES = 10_000
_LABEL_WEIGHT = "task.label_weight"
# Its value for the mask of the model's output, unless an array has this name.
_MASK = "mask"


def spatial_shape(spec: ArraySpec) -> tuple[int, ...]:
    """Returns the shape of an array of one number per position, without a last dim of 1 such as a channel."""
    if len(spec.shape) > 1 and spec.shape[-1] == 1:
        return spec.shape[:-1]
    return spec.shape


def without_roles(config: TaskConfig, arrays: Mapping[str, ArraySpec], label_weight: str | None) -> list[str]:
    """Returns the names of the arrays that are no target and no weight."""
    target = tuple(config.target) or default_target(arrays)
    return [name for name in arrays if name not in {*target, config.example_weight, label_weight}]


class PerPosition(Supervised):
    """Positions that count by their labels' weights.

    Shapes: B examples, *P positions in one dim or more, C classes.

    Attributes:
      label: name of the array of the labels.
      positions: P, sizes of the dims of the positions.
    """

    label: str
    positions: tuple[int, ...]
    step_metrics = ("accuracy",)
    # Array with a weight per label; None: all labels count as 1.
    _label_weight: str | None = None

    @abstractmethod
    def counts(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, *P), the weight of each label; 0 for padding and for what is not counted."""

    def find_label_weight(self, name: str | None, arrays: Mapping[str, ArraySpec]) -> None:
        """Adds the array of the labels' weights, if `task.label_weight` names one.

        Raises:
          ConfigError: the dataset does not have it, or it does not have one number per position.
        """
        if name is None:
            return
        if name not in arrays:
            fix = "name one of these, or remove task.label_weight"
            raise invalid(_LABEL_WEIGHT, name, problem=no_array(name, arrays), fix=fix)
        spec = arrays[name]
        if spatial_shape(spec) != self.positions or np.dtype(spec.dtype).kind not in "biuf":
            problem = f"must have one number per label, shape {list(self.positions)} per example, but its dtype is "
            problem += f"{spec.dtype} and its shape {list(spec.shape)}"
            fix = "name another array, or remove task.label_weight"
            raise invalid(_LABEL_WEIGHT, name, problem=problem, fix=fix)
        self._label_weight = name
        self.arrays = {**self.arrays, name: spec}

    def check_label_weight(self, source: DataSource, split: str) -> None:
        """Checks that the weights of a split's labels are finite, at least 0 and not all 0."""
        if self._label_weight is None:
            return
        weight = source.column(self._label_weight)
        if weight is None:
            return
        low = float(weight.min(initial=0))
        high = float(weight.max(initial=0))
        if low >= 0 and high > 0 and math.isfinite(high):
            return
        problem = f"needs a label with a weight above 0, but the {split} split has none"
        if low < 0 or not math.isfinite(low + high):
            wrong = high
            if low < 0:
                wrong = low
            problem = f"must have finite numbers of at least 0, but the {split} split has {wrong:g}"
        raise invalid(_LABEL_WEIGHT, self._label_weight, problem=problem, fix="fix the array, or name another")

    def _name_sequence_dims(self) -> None:
        """Names the dim of the steps in the specs, which a user's arrays don't have."""
        if len(self.positions) != 1:
            return
        specs = dict(self.arrays)
        for name, spec in specs.items():
            dims = spec.dims or ("",) * len(spec.shape)
            if spec.shape[:1] == self.positions and not dims[0]:
                specs[name] = replace(spec, dims=(SEQUENCE, *dims[1:]))
        self.arrays = specs

    @property
    def weighs_arrays(self) -> bool:
        return self._label_weight is not None

    def weights(self, batch: Batch) -> Array:
        """Returns the number of counted positions of each example, float32 (..., B), 0 for padding."""
        real = np.asarray(batch[WEIGHT], np.float32)
        if not self.weighs_arrays:
            return real * np.float32(np.prod(self.positions))
        counts = self._counts_on_host(batch, (*real.shape, *self.positions))
        # In float64: a large image has more positions than float32 sums exactly one by one.
        return np.asarray(real * counts.reshape(*real.shape, -1).sum(-1, dtype=np.float64), np.float32)

    def _counts_on_host(self, batch: Batch, shape: tuple[int, ...]) -> Array:
        """Returns what `counts` does of arrays on the host, without padding, float32 of a shape (..., B, *P)."""
        if self._label_weight is None:
            return np.ones(shape, np.float32)
        return np.asarray(batch[self._label_weight], np.float32).reshape(shape)

    def counted_terms(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the number of counted positions of each example (B,), 0 for padding."""
        return ops.sum(self.counts(ops, batch), axis=tuple(range(1, len(self.positions) + 1)))

    def _without_channel(self, ops: Arrays, array: Tensor) -> Tensor:
        """Returns an array (B, *P) or (B, *P, 1) as (B, *P)."""
        if len(array.shape) > 1 + len(self.positions):
            return ops.squeeze(array, -1)
        return array

    def labels(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns int32 (B, *P)."""
        return ops.cast(self._without_channel(ops, batch[self.label]), "int32")

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the sums over a batch's examples: in float64, exact for counts and in one order on every mesh."""
        return {name: values.sum(0) for name, values in totals.items()}


class Positions(PerPosition):
    """One class per position of an integer array (B, *P), such as (B, H, W), (B, H, W, 1) or (B, T).

    Shapes: B examples, *P positions, C classes.

    Attributes:
      class_names: in label order.
    """

    own_metrics = dict.fromkeys(("accuracy", "mean_iou", "f1_macro"), MAXIMIZE)
    compares = keras_metrics.CLASSES
    # The chosen loss of probabilities, if it has one number per example, not one per position.
    _loss_of_examples: losses.Loss | None = None

    @classmethod
    def check_options(cls, options: PositionsOptions) -> None:
        """Checks the names of Keras's loss and metrics, and that a loss of whole examples has no weights of labels."""
        super().check_options(options)
        for key in ("label_weight", "class_weights"):
            value = getattr(options, key)
            if options.loss in losses.OF_EXAMPLES and value is not None:
                problem = f"must be null with task.loss={options.loss}, which has one number per example"
                raise invalid(f"task.{key}", value, problem=problem, fix=f"remove task.{key}")

    def __init__(self, config: TaskConfig, options: PositionsOptions, data: TaskData) -> None:
        if config.inputs is None:
            config = replace(config, inputs=without_roles(config, data.arrays, options.label_weight))
        super().__init__(config, options, data)
        self.label = self._check_target(data.arrays)
        self.positions = spatial_shape(data.arrays[self.label])
        if options.label_weight == _MASK and _MASK not in data.arrays:
            self.masked_input = self._find_masked()
        else:
            self.find_label_weight(options.label_weight, data.arrays)
        if len(self.positions) == 1:
            self.tokens = self.positions[0]
        self._name_sequence_dims()
        self.class_names = classes.names_of(
            options.classes, self.arrays[self.label], data, lambda: self._count_classes(data.train)
        )
        self.outputs = OutputSpec(len(self.class_names), self.class_names)
        self._settle_keras(len(self.class_names))
        if options.loss in losses.OF_EXAMPLES:
            self._loss_of_examples = losses.named(options.loss, options=options.loss_options)
        if data.train is not None:
            self.check_split(data.train, "train")
        weights, constants = classes.weights_of(options.class_weights, self.class_names, data, self._count_labels)
        self.constants = {classes.COUNT: [len(self.class_names)], **constants}
        if weights is not None:
            self._class_weights = np.asarray(weights, np.float32)

    def _check_target(self, arrays: Mapping[str, ArraySpec]) -> str:
        name = self._sole_target("needs one array of classes, one per position")
        spec = arrays[name]
        if not spatial_shape(spec) or spec.shape == (1,) or np.dtype(spec.dtype).kind not in "biu":
            problem = "must have one integer per position, such as [height, width] or [steps] per example, but its "
            fix = f"store integers, such as {name}.astype('int32'), or set task=regression"
            if is_one_number(spec):
                fix = "set task=classification, which has one class per example"
            problem += f"dtype is {spec.dtype} and its shape {list(spec.shape)}"
            raise invalid("task.target", name, problem=problem, fix=fix)
        return name

    def _find_masked(self) -> str:
        """Returns the input of integers with one per label, whose zeros an `Embedding(mask_zero=True)` masks."""
        found = set()
        for name in self.input_names:
            spec = self.arrays[name]
            if spec.shape == self.positions and "int" in spec.dtype:
                found.add(name)
        if len(found) != 1:
            problem = f"needs one input of an integer per label, whose zeros are masked, but there are {len(found)}"
            raise invalid(_LABEL_WEIGHT, _MASK, problem=problem, fix="name an array of weights")
        return found.pop()

    def _count_classes(self, train: DataSource | None) -> int:
        labels = classes.known_labels(train, self.label)
        count = max(int(self._counted(labels).max(initial=0)) + 1, 2)
        if count > _MOST_CLASSES:
            problem = f"must have class indices that start at 0, but has integers up to {count - 1:,}"
            fix = f"set task=language_model for tokens, or task.classes={count} if there are so many classes"
            raise invalid("task.target", self.label, problem=problem, fix=fix)
        return count

    def _counted(self, labels: Array) -> Array:
        flat: Array = labels.reshape(-1)
        if self._options.ignore_index is None:
            return flat
        return np.asarray(flat[flat != self._options.ignore_index])

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are from 0 to classes - 1 or `task.ignore_index`, and the weights of the labels."""
        self.check_label_weight(source, split)
        labels = source.column(self.label)
        if labels is None:
            return
        counted = self._counted(labels)
        classes.check_range(counted, len(self.class_names), self.label, split, _fix_of_label)
        if labels.size and not counted.size:
            problem = f"must leave labels to count, but the {split} split has no other label"
            value = self._options.ignore_index
            raise invalid("task.ignore_index", value, problem=problem, fix="remove task.ignore_index")

    def _count_labels(self, train: DataSource) -> Array:
        """Returns the number of labels (C,) of each class in the train split."""
        labels = read_columns(train, [self.label])[self.label]
        return np.bincount(self._counted(labels), minlength=len(self.class_names))

    @property
    def weighs_arrays(self) -> bool:
        return bool(self._label_weight or self.masked_input) or self._options.ignore_index is not None

    def _counts_on_host(self, batch: Batch, shape: tuple[int, ...]) -> Array:
        counts = super()._counts_on_host(batch, shape)
        if self.masked_input is not None:
            counts = (np.asarray(batch[self.masked_input]).reshape(shape) != 0).astype(np.float32)
        if self._options.ignore_index is None:
            return counts
        labels = np.asarray(batch[self.label]).reshape(shape).astype(np.int32)
        is_counted = labels != self._options.ignore_index
        return np.where(is_counted, counts, np.float32(0.0))

    def logits(self, ops: Arrays, outputs: Tensor) -> Tensor:
        """Returns the logits (B, *P, C) of a model's outputs."""
        if self._options.from_logits:
            return outputs
        return ops.log(losses.clipped(ops, outputs))

    def counts(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        label = self.labels(ops, batch)
        counts = ops.cast(ops.ones_like(label), "float32")
        if self._options.ignore_index is not None:
            counts = ops.cast(ops.not_equal(label, self._options.ignore_index), "float32")
        if self._label_weight is not None:
            weight = ops.cast(self._without_channel(ops, batch[self._label_weight]), "float32")
            counts = counts * weight
        if self.masked_input is not None:
            counts = counts * ops.cast(ops.not_equal(batch[self.masked_input], 0), "float32")
        return ops.where(is_real(ops, batch, len(counts.shape)), counts, ops.zeros_like(counts))

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), cross-entropy in nats, summed over its counted positions and weighted."""
        if self._loss is not None:
            return self._weighted(ops, self._chosen_loss(ops, self._loss, outputs, batch), batch)
        logits = self.logits(ops, outputs)
        label = self.labels(ops, batch)
        nats, _ = token_losses(ops, logits, label)
        smoothing = self._options.label_smoothing
        if smoothing:
            # The cross-entropy of the uniform distribution.
            uniform = ops.logsumexp(logits) - ops.mean(logits, axis=-1)
            nats = (1.0 - smoothing) * nats + smoothing * uniform
        if self._class_weights is not None:
            one_hot = ops.one_hot(label, len(self._class_weights))
            nats = nats * ops.sum(one_hot * self._class_weights, axis=-1)
        counts = self.counts(ops, batch)
        return self._weighted(ops, counted_sum(ops, nats, counts, counts), batch)

    def _chosen_loss(self, ops: Arrays, loss: losses.Loss, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,) of a Keras loss, summed over its counted positions."""
        label = self.labels(ops, batch)
        counts = self.counts(ops, batch)
        classes = int(outputs.shape[-1])
        one_hot = ops.one_hot(label, classes)
        target = one_hot * (1.0 - self._options.label_smoothing) + self._options.label_smoothing / classes
        if self._loss_of_examples is not None:
            # What is not counted is neither in the target nor in the output. The mean of a step is over the positions.
            is_counted = ops.expand_dims(ops.cast(ops.greater(counts, 0.0), "float32"), -1)
            share = self._probabilities_of(ops, outputs) * is_counted
            return self._loss_of_examples(ops, target * is_counted, share) * self.counted_terms(ops, batch)
        terms = loss(ops, target, outputs)
        if len(terms.shape) > len(counts.shape):
            terms = ops.mean(terms, axis=-1)
        if self._class_weights is not None:
            terms = terms * ops.sum(one_hot * self._class_weights, axis=-1)
        return counted_sum(ops, terms, counts, counts)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the number of counted positions of each example that are predicted correctly."""
        _, right = token_losses(ops, self.logits(ops, outputs), self.labels(ops, batch))
        counts = self.counts(ops, batch)
        return {"accuracy": counted_sum(ops, right, counts, counts)}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the confusion matrix of each example (B, C, C), whose rows are labels; with many classes its sums.

        Per example: a float32 sum over a whole batch of large images would not be exact.
        """
        of_keras = self._keras_metrics.totals(ops, lambda: self._compared(ops, outputs, batch))
        # Of the whole batch, with a dim for `addends`.
        batch_sums = {name: ops.expand_dims(value, 0) for name, value in of_keras.items()}
        return {**self._own_totals(ops, outputs, batch), **batch_sums}

    def _own_totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        count = len(self.class_names)
        rank = len(self.positions)
        counts_bp1 = ops.expand_dims(self.counts(ops, batch), -1)
        label_bpc = ops.one_hot(self.labels(ops, batch), count) * counts_bp1
        predicted_bpc = ops.one_hot(ops.argmax(outputs, -1), count)
        if count <= _MOST_CONFUSED:
            # (B, ..., C, P) x (B, ..., P, C): a product along the last dim of the positions, and sums over the others.
            # Merging the positions into one dim would gather a dim that is sharded.
            axes = (*range(rank), rank + 1, rank)
            confusion = ops.matmul(ops.transpose(label_bpc, axes), predicted_bpc)
            if rank > 1:
                confusion = ops.sum(confusion, axis=tuple(range(1, rank)))
            return {CONFUSION: confusion}
        over = tuple(range(1, rank + 1))
        return {
            RIGHT: ops.sum(label_bpc * predicted_bpc, axis=over),
            LABELS: ops.sum(label_bpc, axis=over),
            PREDICTED: ops.sum(predicted_bpc * counts_bp1, axis=over),
        }

    def _compared(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Compared:
        target = ops.one_hot(self.labels(ops, batch), len(self.class_names))
        return self._comparison(ops, outputs, batch, target, self.counts(ops, batch))

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the accuracy, and the means of IoU and F1 over the classes that are labels or predictions."""
        right, labels, predicted = by_class(totals)
        occurs = labels + predicted > 0
        count = max(float(occurs.sum()), 1.0)
        metrics = {
            "accuracy": float(ratio(right.sum(), labels.sum())),
            # Intersection over union, the Jaccard index.
            "mean_iou": float(ratio(right, labels + predicted - right).sum() / count),
            "f1_macro": float(f1(right, labels, predicted).sum() / count),
        }
        return {**metrics, **self._keras_metrics.results(totals)}

    def check(self, shapes: Shapes) -> None:
        """Checks that a model has one logit per class for each position."""
        shape = only_shape(shapes)
        expected = (*self.positions, len(self.class_names))
        fits = len(shape) == len(expected) + 1
        # The dims of the positions may be unknown, as of a fully convolutional model.
        for size, expected_size in zip(shape[1:], expected, strict=False):
            fits = fits and size in (None, expected_size)
        if not fits:
            sizes = ", ".join(map(str, expected))
            raise ConfigError(
                f"model._target_: the model's output has shape {list(shape)}, but the task needs [batch, {sizes}], "
                "one logit per class for each position; end the model in a layer of that shape, or set task.classes"
            )

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the classes, a picture of their scores or confusion, and predictions of some images."""
        right, labels, predicted = by_class(evaluation.totals)
        files: dict[str, Callable[[Path], None]] = {}
        if CONFUSION in evaluation.totals:
            matrix = as_counts(evaluation.totals[CONFUSION])
            files["confusion.png"] = partial(
                pictures.confusion, matrix=matrix, class_names=self.class_names, split=split, unit="positions"
            )
        tables: dict[str, Table] = {"classes": _class_table(self.class_names, right, labels, predicted)}
        image = self.first_image
        has_grid = len(self.positions) == 2
        if image is not None and has_grid and len(evaluation.outputs):
            count = min(_SHOWN, len(evaluation.outputs))
            batch = source.read(np.arange(count))
            label = batch[self.label].reshape(count, *self.positions).astype(np.int32)
            files["positions.png"] = partial(
                pictures.segmentation,
                images=batch[image],
                labels=np.where(label == self._options.ignore_index, -1, label),
                predictions=evaluation.outputs[:count].argmax(-1),
                class_names=self.class_names,
                split=split,
            )
        return Report(files, tables)


def _fix_of_label(label: int) -> str:
    return f"set task.ignore_index={label} if it means no class, or task.classes to the number of classes"


def _class_table(names: Sequence[str], right: Array, labels: Array, predicted: Array) -> Table:
    rows = zip(
        names,
        shares(right, labels + predicted - right),
        shares(2.0 * right, labels + predicted),
        shares(right, predicted),
        shares(right, labels),
        as_counts(labels).tolist(),
        as_counts(predicted).tolist(),
        strict=True,
    )
    return ("class", "iou", "f1 (dice)", "precision", "recall", "labels", "predicted"), list(rows)
