# ruff: noqa: D102 - a task overrides what Task documents
"""One class per example: softmax cross-entropy on logits, accuracy, confusion matrix and misclassified examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.arrays import of as numpy_functions
from runner.config.schema_task import ClassificationOptions, TaskConfig
from runner.data.base import Array, ArraySpec, DataSource
from runner.errors import invalid
from runner.host.late import late
from runner.task import classes, keras_metrics, losses
from runner.task.base import Cell, Evaluation, OutputSpec, Report, Shapes, TaskData
from runner.task.keras_metrics import Compared
from runner.task.metrics import MAXIMIZE
from runner.task.supervised import (
    CONFUSION,
    LABELS,
    PREDICTED,
    RIGHT,
    Supervised,
    as_counts,
    as_vector,
    by_class,
    check_output,
    class_table,
    counted,
    is_real,
    read_columns,
)

if TYPE_CHECKING:
    from runner import figures
    from runner.task import pictures
else:
    figures = late("runner.figures")
    pictures = late("runner.task.pictures")

# Classes up to which a step computes the whole confusion matrix, C x C float32 numbers: 4 MB for 1,000 classes. With
# more, it counts by class only.
_MOST_CONFUSED = 1000
# Misclassified examples in the report: four rows of pictures.
_MOST_WRONG = 24
# Characters of a predicted class that leave room for its probability.
_LONGEST = 12
# Absolute error of probabilities that should sum to 1, as files often have them rounded to two digits.
_ROUNDING = 1e-2
# Probabilities of an example that a message shows.
_MOST_SHOWN = 4


class Classification(Supervised):
    """One class per example, with integer labels or with one probability per class, as for a mixture of examples.

    Shapes: B examples, C classes.

    Attributes:
      class_names: in label order.
    """

    own_metrics = {"accuracy": MAXIMIZE}  # noqa: RUF012 - as in the base class
    step_metrics = ("accuracy",)
    compares = keras_metrics.CLASSES

    def __init__(self, config: TaskConfig, options: ClassificationOptions, data: TaskData) -> None:
        super().__init__(config, options, data)
        fix = "name one array, or set task=multilabel or task=regression"
        self._target = self._sole_target("task=classification needs one array of classes", fix=fix)
        target_spec = data.arrays[self._target]
        self._has_probabilities = self._target_has_probabilities(target_spec)
        self.class_names = self._resolve_names(target_spec, data)
        if data.train is not None:
            self.check_split(data.train, "train")
        self.outputs = OutputSpec(len(self.class_names), self.class_names)
        self._settle_keras(len(self.class_names))
        weights, constants = classes.weights_of(options.class_weights, self.class_names, data, self._count_examples)
        self.constants = {classes.COUNT: [len(self.class_names)], **constants}
        if weights is not None:
            self._class_weights = np.asarray(weights, np.float32)

    def _target_has_probabilities(self, spec: ArraySpec) -> bool:
        has_tokens = np.dtype(spec.dtype).kind in "biu" and spec.dims == ("sequence",)
        # Many files have class indices as floats; `check_split` rejects fractions.
        if len(spec.shape) <= 1 and not has_tokens:
            return int(np.prod(spec.shape)) > 1
        problem = "must have one integer per example, or one number per class, but its dtype is "
        problem = f"{problem}{spec.dtype} and its shape {list(spec.shape)}"
        fix = "set task=language_model for tokens, task=positions for a class each, or task=regression"
        raise invalid("task.target", self._target, problem=problem, fix=fix)

    def _resolve_names(self, spec: ArraySpec, data: TaskData) -> tuple[str, ...]:
        setting = self._options.classes
        names = classes.names_of(setting, spec, data, lambda: self._count_classes(spec, data.train))
        if self._has_probabilities and len(names) != spec.shape[0]:
            source = "task.classes has"
            if setting is None:
                source = "the dataset names"
            problem = f"has {spec.shape[0]} probabilities per example, but {source} {len(names)} classes"
            raise invalid("task.target", self._target, problem=problem, fix=f"set task.classes={spec.shape[0]}")
        # `task.classes` has at least 2, so only a dataset's own names are too few.
        if len(names) < 2:
            fix = "name another array, or use data with two classes"
            raise invalid("task.target", self._target, problem=f"has one class only, {names[0]}", fix=fix)
        return names

    def _count_classes(self, spec: ArraySpec, train: DataSource | None) -> int:
        if self._has_probabilities:
            return spec.shape[0]
        labels = classes.whole(classes.known_labels(train, self._target), self._target)
        count = max(int(labels.max(initial=0)) + 1, 2)
        # More classes than examples: most likely identifiers or amounts. Few classes cost nothing, whatever they are.
        if count > max(len(labels), _MOST_CONFUSED):
            problem = f"must have class indices that start at 0, but {len(labels):,} examples have integers up to "
            problem += f"{count - 1:,}"
            fix = f"set task=regression, or task.classes={count} if there are so many classes"
            raise invalid("task.target", self._target, problem=problem, fix=fix)
        return count

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are from 0 to classes - 1, or that probabilities sum to 1."""
        labels = source.column(self._target)
        if labels is None:
            if np.dtype(self.arrays[self._target].dtype).kind == "f" and not self._has_probabilities:
                problem = "has floats, which can't be checked to be class indices before they are read"
                fix = "store integers, or set task=regression"
                raise invalid("task.target", self._target, problem=problem, fix=fix)
            return
        if self._has_probabilities:
            self._check_probabilities(labels, split)
            return
        fix = "store class indices that start at 0, or set task.classes to the number of classes"
        labels = classes.whole(labels, self._target)
        classes.check_range(labels, len(self.class_names), self._target, split, lambda _: fix)

    def _check_probabilities(self, labels: Array, split: str) -> None:
        # Written so that NaN, which compares as false with all, is wrong.
        is_right = (np.abs(labels.sum(-1) - 1) <= _ROUNDING) & (labels.min(-1) >= 0)
        wrong = np.flatnonzero(~is_right)
        if len(wrong):
            shown = ", ".join(f"{chance:g}" for chance in labels[wrong[0]][:_MOST_SHOWN].tolist())
            problem = (
                f"must have probabilities that sum to 1, but example {wrong[0]:,} of the {split} split has {shown}"
            )
            fix = "set task=multilabel, task=regression, or task=positions for a class per token"
            raise invalid("task.target", self._target, problem=problem, fix=fix)

    def _count_examples(self, train: DataSource) -> Array:
        """Returns the number of examples (C,) of each class, fractions if the target has probabilities."""
        labels = read_columns(train, [self._target])[self._target]
        if self._has_probabilities:
            return np.asarray(labels.sum(0))
        return np.bincount(labels.reshape(-1).astype(np.int64), minlength=len(self.class_names))

    def _label(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns int32 (B,), the most probable class if the target has probabilities."""
        if self._has_probabilities:
            return ops.argmax(batch[self._target], -1)
        return ops.cast(as_vector(ops, batch[self._target]), "int32")

    def _probabilities(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the target as float32 (B, C), without label smoothing."""
        if self._has_probabilities:
            return ops.cast(batch[self._target], "float32")
        return ops.one_hot(self._label(ops, batch), len(self.class_names))

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), cross-entropy in nats, times its class weight and its sample weight."""
        smoothing = self._options.label_smoothing
        is_sparse = not (self._has_probabilities or smoothing)
        if self._loss is None and is_sparse and self._options.from_logits:
            loss_b = ops.sparse_cross_entropy(self._label(ops, batch), outputs)
        else:
            label_bc = self._probabilities(ops, batch)
            if smoothing:
                label_bc = label_bc * (1.0 - smoothing) + smoothing / len(self.class_names)
            if self._loss is not None:
                loss_b = losses.mean_by_example(ops, self._loss(ops, label_bc, outputs))
            elif self._options.from_logits:
                loss_b = ops.cross_entropy(label_bc, outputs)
            else:
                loss_b = losses.cross_entropy(ops, label_bc, outputs)
        if self._class_weights is not None:
            loss_b = loss_b * ops.sum(self._probabilities(ops, batch) * self._class_weights, axis=-1)
        return self._weighted(ops, loss_b, batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        is_correct = ops.equal(ops.argmax(outputs, -1), self._label(ops, batch))
        return {"accuracy": ops.cast(is_correct, "float32")}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the confusion matrix (C, C), whose rows are labels; with many classes its diagonal and its sums."""
        count = len(self.class_names)
        label_bc = ops.one_hot(self._label(ops, batch), count)
        predicted_bc = ops.one_hot(ops.argmax(outputs, -1), count)
        label_bc = ops.where(is_real(ops, batch, 2), label_bc, ops.zeros_like(label_bc))
        totals: dict[str, Tensor] = {}
        if count <= _MOST_CONFUSED:
            totals[CONFUSION] = ops.matmul(ops.transpose(label_bc), predicted_bc)
        else:
            totals[RIGHT] = ops.sum(label_bc * predicted_bc, axis=0)
            totals[LABELS] = ops.sum(label_bc, axis=0)
            totals[PREDICTED] = counted(ops, batch, predicted_bc, [0])
        return {**totals, **self._keras_metrics.totals(ops, lambda: self._compared(ops, outputs, batch))}

    def _compared(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Compared:
        target = self._probabilities(ops, batch)
        weight = ops.cast(is_real(ops, batch), "float32")
        label = ops.one_hot(self._label(ops, batch), len(self.class_names))
        return self._comparison(ops, outputs, batch, target, weight, label)

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        right, examples, _ = by_class(totals)
        accuracy = float(right.sum()) / max(float(examples.sum()), 1.0)
        return {"accuracy": accuracy, **self._keras_metrics.results(totals)}

    def check(self, shapes: Shapes) -> None:
        check_output(shapes, (len(self.class_names),), "one logit per class of the dataset")

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the classes, the confusion matrix, and the errors that the model was most certain of."""
        files: dict[str, Callable[[Path], None]] = {}
        tables = {"classes": class_table(self.class_names, *by_class(evaluation.totals))}
        if CONFUSION in evaluation.totals:
            matrix = as_counts(evaluation.totals[CONFUSION])
            files["confusion.png"] = partial(
                pictures.confusion, matrix=matrix, class_names=self.class_names, split=split
            )
        if len(evaluation.outputs):
            errors = self._report_errors(evaluation.outputs, source, split)
            files |= errors.files
            tables |= errors.tables
        return Report(files, tables)

    def _report_errors(self, outputs: Array, source: DataSource, split: str) -> Report:
        names = self.class_names
        count = len(outputs)
        labels = read_columns(source, [self._target], count)[self._target]
        if self._has_probabilities:
            labels = labels.argmax(-1)
        else:
            labels = labels.reshape(-1).astype(np.int64)
        outputs = self._probabilities_of(numpy_functions(np), outputs.astype(np.float64))
        predicted = outputs.argmax(axis=1)
        probability = outputs.max(axis=1)
        wrong = np.flatnonzero(predicted != labels)
        shown = wrong[np.argsort(-probability[wrong], kind="stable")][:_MOST_WRONG]
        rows: list[tuple[Cell, ...]] = []
        captions = []
        for example in shown.tolist():
            label_name = names[labels[example]]
            predicted_name = names[predicted[example]]
            certainty = float(probability[example])
            rows.append((example, label_name, predicted_name, certainty))
            captions.append((figures.short(label_name), f"{figures.short(predicted_name, _LONGEST)}, {certainty:.1%}"))
        image = self.first_image
        if image is None:
            columns = ("example", "label", "predicted", "probability")
            return Report({}, {"most confidently wrong": (columns, rows)})
        title = f"{len(wrong):,} of {count:,} {split} examples are wrong"
        if len(wrong) > len(shown):
            title += f"; the {len(shown)} most confident"
        if len(shown):
            title += "\nbelow each its label, and in orange the prediction with its probability"
        draw = partial(figures.examples, images=source.read(shown)[image], captions=captions, title=title)
        return Report({"wrong.png": draw}, {})
