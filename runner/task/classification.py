"""One class per example: softmax cross-entropy on logits, accuracy, confusion matrix and misclassified examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import ClassificationOptions, TaskConfig
from runner.data.base import Array, ArraySpec, DataSource, column
from runner.errors import invalid
from runner.host.late import late
from runner.task import class_names, class_weights, keras_metrics, losses, probabilities
from runner.task.base import Cell, Evaluation, OutputSpec, Report, Table, Task, TaskData
from runner.task.checks import check_output, not_logits
from runner.task.keras_metrics import Compared, KerasMetrics
from runner.task.metrics import MAXIMIZE
from runner.task.supervised import (
    Supervised,
    as_counts,
    as_vector,
    counted,
    is_real,
    read_columns,
    roles,
)
from runner.task.token_checks import tags_fix

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


def _own_metrics(options: ClassificationOptions) -> list[str]:
    return ["accuracy"] if options.top_k is None else ["accuracy", f"top_{options.top_k}"]


def directions(options: ClassificationOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation except the loss, with the better direction of each."""
    metrics = dict.fromkeys(_own_metrics(options), MAXIMIZE)
    return {**metrics, **keras_metrics.directions(options.metrics, keras_metrics.CLASSES, _own_metrics(options))}


def step_metrics(options: ClassificationOptions) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss."""
    # The signature is that of all tasks; see `runner.task.registry`.
    del options
    return ("accuracy",)


def check(options: ClassificationOptions) -> None:
    """Checks options without a dataset.

    Raises:
      ConfigError: a value is invalid.
    """
    classes = options.classes
    count = len(classes) if isinstance(classes, list) else classes
    if count is not None:
        _check_top_k(options.top_k, count)
    losses.check_chosen(options.loss, options.loss_options)
    keras_metrics.requested(options.metrics, keras_metrics.CLASSES, _own_metrics(options))


def _check_top_k(top_k: int | None, classes: int) -> None:
    """Checks `task.top_k` (None: it is not set) against the number of classes."""
    if top_k is None or top_k < classes:
        return
    fix = "remove task.top_k"
    # The most probable class alone is the accuracy.
    if classes > 2:
        fix = f"set task.top_k={classes - 1} or less, or remove task.top_k"
    raise invalid("task.top_k", top_k, problem=f"must be below the number of classes, {classes}", fix=fix)


def make(config: TaskConfig, options: ClassificationOptions, data: TaskData) -> Task:
    """Returns the task of a run."""
    return Classification(config, options, data)


class Classification(Supervised):
    """One class per example, with integer labels or with one probability per class, as for a mixture of examples.

    Shapes: B examples, C classes.

    Attributes:
      class_names: in label order.
    """

    def __init__(self, config: TaskConfig, options: ClassificationOptions, data: TaskData) -> None:
        """Resolves the classes and their weights; see `runner.task.registry.make_task`."""
        super().__init__(roles(config, data.arrays), data.arrays, directions(options))
        self._name = config.name
        self._target = self._sole_target(
            f"task={config.name} needs one array of classes",
            fix="name one array, or set task=multilabel or task=regression",
        )
        self._options = options
        target_spec = data.arrays[self._target]
        self._has_probabilities = self._target_has_probabilities(target_spec)
        self.class_names = self._resolve_names(target_spec, data)
        _check_top_k(options.top_k, len(self.class_names))
        if data.train is not None:
            self.check_split(data.train, "train")
        self.outputs = OutputSpec(len(self.class_names), self.class_names)
        self.step_metrics = step_metrics(options)
        self._keras_metrics = KerasMetrics(
            options.metrics,
            keras_metrics.CLASSES,
            _own_metrics(options),
            len(self.class_names),
            has_example_weight=config.example_weight is not None,
        )
        self.constants = {class_names.CONSTANT: [len(self.class_names)]}
        weights = class_weights.resolve(options.class_weights, self.class_names, data, self._count_examples)
        activation = losses.SOFTMAX if options.from_logits else None
        self._loss = losses.of_model(options.loss, options.loss_options, activation)
        if weights is not None:
            self._class_weights = np.asarray(weights, np.float32)
            self.constants |= class_weights.constants(options.class_weights, weights)

    def _target_has_probabilities(self, spec: ArraySpec) -> bool:
        has_tokens = np.dtype(spec.dtype).kind in "biu" and spec.dims == ("sequence",)
        # Many files have class indices as floats; `check_split` rejects fractions.
        if len(spec.shape) <= 1 and not has_tokens:
            return int(np.prod(spec.shape)) > 1
        fix = "store the index of the class, or set task=regression"
        if has_tokens:
            fix = "set task=language_model, or name another array"
        raise invalid(
            "task.target",
            self._target,
            problem="must have one integer per example, or one number per class, but its dtype is "
            f"{spec.dtype} and its shape {list(spec.shape)}",
            fix=fix,
        )

    def _resolve_names(self, spec: ArraySpec, data: TaskData) -> tuple[str, ...]:
        """Returns the class names, which are numbers if nothing names the classes."""
        names = class_names.resolve(self._options.classes, spec, data, lambda: self._count_classes(spec, data.train))
        if self._has_probabilities and len(names) != spec.shape[0]:
            count = spec.shape[0]
            if self._options.classes is None:
                raise invalid(
                    "task.target",
                    self._target,
                    problem=f"has {count} probabilities per example, but the dataset names {len(names)} classes",
                    fix=f"set task.classes={count}",
                )
            raise invalid(
                "task.classes",
                self._options.classes,
                problem=f"must be {count}, the number of probabilities per example of array {self._target}",
                fix="remove task.classes",
            )
        # `task.classes` has at least 2, so only a dataset's own names are too few.
        if len(names) < 2:
            raise invalid(
                "task.target",
                self._target,
                problem=f"has one class only, {names[0]}",
                fix="name another array, or use data with two classes",
            )
        return names

    def _count_classes(self, spec: ArraySpec, train: DataSource | None) -> int:
        if self._has_probabilities:
            return spec.shape[0]
        labels = class_names.whole(class_names.known_labels(train, self._target, example=10), self._target)
        count = max(int(labels.max(initial=0)) + 1, 2)
        # More classes than examples: most likely identifiers or amounts. Few classes cost nothing, whatever they are.
        if count > max(len(labels), _MOST_CONFUSED):
            raise invalid(
                "task.target",
                self._target,
                problem=f"must have class indices that start at 0, but {len(labels):,} examples have integers up to "
                f"{count - 1:,}",
                fix=f"set task=regression, or task.classes={count} if there are so many classes",
            )
        return count

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are from 0 to classes - 1, or that probabilities sum to 1."""
        labels = column(source, self._target)
        if labels is None:
            if np.dtype(self.arrays[self._target].dtype).kind == "f" and not self._has_probabilities:
                raise invalid(
                    "task.target",
                    self._target,
                    problem="has floats, which can't be checked to be class indices before they are read",
                    fix="store integers, or set task=regression",
                )
            return
        if self._has_probabilities:
            self._check_probabilities(labels, split)
            return
        fix = "store class indices that start at 0, or set task.classes to the number of classes"
        labels = class_names.whole(labels, self._target)
        class_names.check_range(labels, len(self.class_names), self._target, split, lambda _: fix)

    def _check_probabilities(self, labels: Array, split: str) -> None:
        """Checks probabilities (N, C)."""
        sums = labels.sum(-1)
        lows = labels.min(-1)
        # Written so that NaN, which compares as false with all, is wrong.
        is_right = (np.abs(sums - 1) <= _ROUNDING) & (lows >= 0)
        wrong = np.flatnonzero(~is_right)
        if not len(wrong):
            return
        example = wrong[0]
        high = labels.max(initial=0)
        # Several integers per example that are no 0 and 1 are most likely classes of its tokens.
        if labels.dtype.kind in "iu" and high > 1 and labels.min() >= 0:
            raise invalid(
                "task.target",
                self._target,
                problem=f"task={self._name} predicts one class per example, but this array has "
                f"{labels.shape[1]} integers per example, up to {high} in the {split} split",
                fix=tags_fix(self._target, int(high) + 1),
            )
        fix = "set task=multilabel or task=regression"
        problem = (
            "must have probabilities that sum to 1, but those of example "
            f"{example:,} of the {split} split sum to {float(sums[example]):g}"
        )
        if not np.isfinite(sums[example]):
            fix = "repair or remove that example"
        if lows[example] < 0:
            # A label of multilabel is 0 or 1.
            fix = "set task=regression"
            problem = (
                f"must not have negative probabilities, but example {example:,} of the {split} split has "
                f"{float(lows[example]):g}"
            )
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

    def _cross_entropy(self, ops: Arrays, label_bc: Tensor, outputs: Tensor) -> Tensor:
        if self._options.from_logits:
            return ops.cross_entropy(label_bc, outputs)
        return probabilities.cross_entropy(ops, label_bc, outputs)

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), cross-entropy in nats, times its class weight and its sample weight."""
        smoothing = self._options.label_smoothing
        if self._has_probabilities or smoothing or self._loss is not None:
            label_bc = self._probabilities(ops, batch) * (1.0 - smoothing) + smoothing / len(self.class_names)
            if self._loss is not None:
                loss_b = losses.mean_by_example(ops, self._loss(ops, label_bc, outputs))
            else:
                loss_b = self._cross_entropy(ops, label_bc, outputs)
        elif not self._options.from_logits:
            loss_b = self._cross_entropy(ops, self._probabilities(ops, batch), outputs)
        else:
            loss_b = ops.sparse_cross_entropy(self._label(ops, batch), outputs)
        if self._class_weights is not None:
            loss_b = loss_b * ops.sum(self._probabilities(ops, batch) * self._class_weights, axis=-1)
        return self._weighted(ops, loss_b, batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns 1 for each correctly classified example, else 0."""
        is_correct = ops.equal(ops.argmax(outputs, -1), self._label(ops, batch))
        return {"accuracy": ops.cast(is_correct, "float32")}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the confusion matrix (C, C), whose rows are labels; with many classes its diagonal and its sums."""
        classes = len(self.class_names)
        label_bc = ops.one_hot(self._label(ops, batch), classes)
        predicted_bc = ops.one_hot(ops.argmax(outputs, -1), classes)
        real_b1 = is_real(ops, batch, 2)
        label_bc = ops.where(real_b1, label_bc, ops.zeros_like(label_bc))
        totals: dict[str, Tensor] = {}
        if classes <= _MOST_CONFUSED:
            totals["confusion"] = ops.matmul(ops.transpose(label_bc), predicted_bc)
        else:
            totals["right"] = ops.sum(label_bc * predicted_bc, axis=0)
            totals["examples"] = ops.sum(label_bc, axis=0)
            totals["predicted"] = counted(ops, batch, predicted_bc, [0])
        if self._options.top_k is not None:
            in_top_b = _is_in_top(ops, outputs, label_bc, self._options.top_k)
            totals["top_k"] = counted(ops, batch, in_top_b, [0])
        return {**totals, **self._keras_metrics.totals(ops, lambda: self._compared(ops, outputs, batch))}

    def _compared(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Compared:
        """Returns what Keras's metrics compare: probabilities and one-hot labels."""
        has_logits = self._options.from_logits
        return Compared(
            target=self._probabilities(ops, batch),
            prediction=ops.softmax(outputs) if has_logits else outputs,
            weight=ops.cast(is_real(ops, batch), "float32"),
            label=ops.one_hot(self._label(ops, batch), len(self.class_names)),
            logits=outputs if has_logits else None,
            example_weight=self._example_weights(ops, batch),
        )

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the accuracy, and the top-k accuracy if the config asks for it."""
        right, examples, _ = _by_class(totals)
        count = max(float(examples.sum()), 1.0)
        metrics = {"accuracy": float(right.sum()) / count}
        if self._options.top_k is not None:
            metrics[f"top_{self._options.top_k}"] = float(totals["top_k"]) / count
        return {**metrics, **self._keras_metrics.results(totals)}

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model has one logit per class."""
        check_output(shape, (len(self.class_names),), "one logit per class of the dataset")

    def predictions(self, ops: Arrays, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the probabilities (B, C) and the most probable class (B,); and the logits (B, C)."""
        if not self._options.from_logits:
            return {"probabilities": outputs, "class": ops.argmax(outputs, -1)}
        return {"logits": outputs, "probabilities": ops.softmax(outputs), "class": ops.argmax(outputs, -1)}

    def warnings(self, outputs: Array) -> list[str]:
        """Returns a warning if the outputs look like probabilities and should be logits, or the reverse."""
        if not self._options.from_logits:
            return probabilities.outside_warnings(outputs)
        return probabilities.softmax_warnings(outputs) or not_logits(outputs)

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the classes, the confusion matrix, and the errors that the model was most certain of."""
        files: dict[str, Callable[[Path], None]] = {}
        tables = {"classes": self._class_table(evaluation.totals)}
        if "confusion" in evaluation.totals:
            matrix = as_counts(evaluation.totals["confusion"])
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
        labels = labels.argmax(-1) if self._has_probabilities else labels.reshape(-1).astype(np.int64)
        if self._options.from_logits:
            outputs = _softmax(outputs)
        wrong, predicted, probability = misclassified_examples(labels, outputs)
        shown = wrong[:_MOST_WRONG]
        shown_predicted = predicted[:_MOST_WRONG]
        shown_probability = probability[:_MOST_WRONG]
        rows: list[tuple[Cell, ...]] = []
        captions = []
        for example, predicted_class, certainty in zip(shown, shown_predicted, shown_probability, strict=True):
            label_name = names[labels[example]]
            predicted_name = names[predicted_class]
            rows.append((int(example), label_name, predicted_name, float(certainty)))
            captions.append((figures.short(label_name), f"{figures.short(predicted_name, _LONGEST)}, {certainty:.1%}"))
        image = next((name for name in self.input_names if self.arrays[name].is_image), None)
        if image is None:
            columns = ("example", "label", "predicted", "probability")
            return Report({}, {"most confidently wrong": (columns, rows)})
        title = f"{len(wrong):,} of {count:,} {split} examples are wrong"
        if len(wrong) > len(shown):
            title += f"; the {len(shown)} most confident"
        if len(shown):
            title += "\nbelow each its label, and in red the prediction with its probability"
        draw = partial(figures.examples, images=source.read(shown)[image], captions=captions, title=title)
        return Report({"wrong.png": draw}, {})

    def _class_table(self, totals: Mapping[str, Array]) -> Table:
        """Returns the precision and recall of each class; None if it has no predictions or no examples."""
        rows: list[tuple[Cell, ...]] = []
        for name, right, examples, predicted in zip(self.class_names, *_by_class(totals), strict=True):
            precision = _ratio(right, predicted)
            recall = _ratio(right, examples)
            rows.append((name, precision, recall, int(examples), int(predicted)))
        return ("class", "precision", "recall", "examples", "predicted"), rows


def _by_class(totals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Returns int64 counts per class: correctly classified examples, examples, and predictions."""
    if "confusion" in totals:
        matrix = as_counts(totals["confusion"])
        return np.diag(matrix), matrix.sum(1), matrix.sum(0)
    return as_counts(totals["right"]), as_counts(totals["examples"]), as_counts(totals["predicted"])


def _is_in_top(ops: Arrays, outputs: Tensor, label_bc: Tensor, k: int) -> Tensor:
    """Returns bool (B,): the label's output is finite, and fewer than k of the outputs (B, C) are larger."""
    is_label = ops.greater(label_bc, 0.0)
    label_output = ops.sum(ops.where(is_label, outputs, ops.zeros_like(outputs)), axis=-1, keepdims=True)
    larger = ops.sum(ops.cast(ops.greater(outputs, label_output), "float32"), axis=-1)
    return ops.logical_and(ops.less(larger, float(k)), ops.isfinite(ops.sum(label_output, axis=-1)))


def _ratio(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def _softmax(logits: Array) -> Array:
    """Returns float64 probabilities (N, C) of logits (N, C)."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def misclassified_examples(labels: Array, probabilities_nc: Array) -> tuple[Array, Array, Array]:
    """Returns the misclassified examples, sorted by the probability of the predicted class, largest first.

    Args:
      labels: int (N,).
      probabilities_nc: (N, C).
    """
    if not len(probabilities_nc):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    predicted = probabilities_nc.argmax(axis=1)
    probability = probabilities_nc.max(axis=1)
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-probability[wrong], kind="stable")]
    return wrong, predicted[wrong], probability[wrong]
