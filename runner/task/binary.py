"""One of two classes per example, by one logit: sigmoid cross-entropy, areas under curves, precision and recall."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import BinaryOptions, TaskConfig
from runner.data.base import Array, ArraySpec, DataSource, column
from runner.errors import did_you_mean, invalid
from runner.host.late import late
from runner.task import class_weights, keras_metrics, losses, thresholds
from runner.task.base import Cell, Evaluation, OutputSpec, Report, Table, Task, TaskData
from runner.task.checks import check_output
from runner.task.keras_metrics import KerasMetrics
from runner.task.metrics import MAXIMIZE
from runner.task.sigmoids import OfSigmoids
from runner.task.supervised import as_counts, columns, counted, read_columns, roles

if TYPE_CHECKING:
    from runner import figures
    from runner.task import pictures
else:
    figures = late("runner.figures")
    pictures = late("runner.task.pictures")

# Names of the sums of `Binary.totals`.
_ABOVE = "above"
_POSITIVE_ABOVE = "positive_above"
_POSITIVES = "positives"
_EXAMPLES = "examples"


def _own_metrics(options: BinaryOptions) -> list[str]:
    return ["accuracy", "f1", "precision", "recall", "auc", "auc_pr", *thresholds.names(options.thresholds)]


def directions(options: BinaryOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation except the loss, with the better direction of each."""
    metrics = dict.fromkeys(_own_metrics(options), MAXIMIZE)
    return {**metrics, **keras_metrics.directions(options.metrics, keras_metrics.LABELS, _own_metrics(options))}


def step_metrics(options: BinaryOptions) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss."""
    del options
    return ("accuracy",)


def check(options: BinaryOptions) -> None:
    """Checks options without a dataset.

    Raises:
      ConfigError: a value is invalid.
    """
    thresholds.check_names(options.thresholds)
    losses.check_chosen(options.loss, options.loss_options)
    keras_metrics.requested(options.metrics, keras_metrics.LABELS, _own_metrics(options))


def make(config: TaskConfig, options: BinaryOptions, data: TaskData) -> Task:
    """Returns the task of a run."""
    return Binary(config, options, data)


class Binary(OfSigmoids):
    """Two classes: 0 and 1, false and true, or two named categories. The model returns one number (B, 1).

    Shapes: B examples, N thresholds.

    Attributes:
      class_names: of the negative and of the positive class.
    """

    def __init__(self, config: TaskConfig, options: BinaryOptions, data: TaskData) -> None:
        """Settles the classes and their weights; see `runner.task.registry.make_task`."""
        super().__init__(roles(config, data.arrays), data.arrays, directions(options), from_logits=options.from_logits)
        self._options = options
        self._target = self._check_target(data.arrays)
        # 0 and 1, unless the dataset has names for its two categories.
        names = data.arrays[self._target].names or ("0", "1")
        self._is_flipped = self._check_positive(names)
        self.class_names = tuple(reversed(names)) if self._is_flipped else tuple(names)
        self.outputs = OutputSpec(1, self.class_names[1:])
        self.step_metrics = step_metrics(options)
        activation = losses.SIGMOID if options.from_logits else None
        self._loss = losses.of_model(options.loss, options.loss_options, activation)
        self._keras_metrics = KerasMetrics(
            options.metrics,
            keras_metrics.LABELS,
            _own_metrics(options),
            size=1,
            has_example_weight=config.example_weight is not None,
        )
        if data.train is not None:
            self.check_split(data.train, "train")
        weights = class_weights.resolve(options.class_weights, names, data, self._count_examples)
        if weights is not None:
            self._class_weights = weights
            self.constants = class_weights.constants(options.class_weights, weights)
        # The thresholds of the areas are first, then the one of the predictions, then those of the config.
        of_area = thresholds.of_area(options.auc_thresholds)
        self._area_rows = slice(0, len(of_area))
        self._thresholds = [*of_area, options.threshold, *options.thresholds]
        self._logits_n = thresholds.as_logits(self._thresholds)

    def _check_target(self, arrays: Mapping[str, ArraySpec]) -> str:
        name = self._sole_target(
            "task=binary needs one array", fix="name one array, or set task=multilabel for several labels per example"
        )
        spec = arrays[name]
        if spec.shape not in ((), (1,)) or np.dtype(spec.dtype).kind not in "biuf":
            fix = "name another array, or set task=multilabel for several labels per example"
            if len(spec.shape) == 1 and np.dtype(spec.dtype).kind == "f":
                fix = "set task=classification, which takes one probability per class"
            raise invalid(
                "task.target",
                name,
                problem="task=binary needs one 0 or 1 per example, but its dtype is "
                f"{spec.dtype} and its shape {list(spec.shape)}",
                fix=fix,
            )
        if spec.names and len(spec.names) != 2:
            raise invalid(
                "task.target",
                name,
                problem=f"task=binary needs two classes, but it has {len(spec.names)}",
                fix="set task=classification",
            )
        return name

    def _check_positive(self, names: Sequence[str]) -> bool:
        positive = self._options.positive
        if positive is None:
            return False
        if str(positive) not in names:
            raise invalid(
                "task.positive",
                positive,
                problem=f"must be one of the two classes, {names[0]} and {names[1]}",
                fix=did_you_mean(str(positive), names, f"set task.positive={names[1]}"),
            )
        return str(positive) == names[0]

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are from 0 to 1."""
        # None if labels would have to be read example by example, as those of a user's own source.
        labels = column(source, self._target)
        if labels is None or (labels.min(initial=0) >= 0 and labels.max(initial=0) <= 1):
            return
        low = labels.min()
        # `not low >= 0`, because a NaN compares false with every number.
        wrong = low if not low >= 0 else labels.max()
        raise invalid(
            "task.target",
            self._target,
            problem=f"task=binary needs a 0 or 1 per example, but the {split} split has {wrong:g}",
            fix="store 0 and 1, or set task=classification for more classes",
        )

    def _count_examples(self, train: DataSource) -> Array:
        """Returns the number of examples (2,) of label 0 and of label 1."""
        labels = read_columns(train, [self._target])[self._target].astype(np.float64)
        return np.asarray([labels.size - labels.sum(), labels.sum()])

    def _labels(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, 1), 1 for the positive class."""
        label_b1 = columns(ops, batch, self.target_names)
        return 1.0 - label_b1 if self._is_flipped else label_b1

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), cross-entropy in nats, times its class weight and its sample weight."""
        smoothing = self._options.label_smoothing
        label_b1 = self._labels(ops, batch)
        smooth_b1 = label_b1 * (1.0 - smoothing) + 0.5 * smoothing
        if self._loss is not None:
            loss_b1 = ops.expand_dims(losses.mean_by_example(ops, self._loss(ops, smooth_b1, outputs)), -1)
        else:
            loss_b1 = ops.sigmoid_cross_entropy(smooth_b1, self._as_logits(ops, outputs))
        if self._class_weights is not None:
            # The weights are those of the dataset's own 0 and 1.
            own_b1 = columns(ops, batch, self.target_names)
            weight_0, weight_1 = self._class_weights
            loss_b1 = loss_b1 * (weight_0 + (weight_1 - weight_0) * own_b1)
        return self._weighted(ops, ops.sum(loss_b1, axis=-1), batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns 1 for each correctly classified example, else 0."""
        is_positive_b1 = ops.greater(self._labels(ops, batch), 0.5)
        # Logits are compared with the threshold's logit: for large ones, a sigmoid in float32 is 1.
        threshold = float(thresholds.as_logits([self._options.threshold])[0])
        is_above_b1 = ops.greater(self._as_logits(ops, outputs), threshold)
        agree_b1 = ops.cast(ops.equal(is_positive_b1, is_above_b1), "float32")
        return {"accuracy": ops.sum(agree_b1, axis=-1)}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the numbers of examples and of positive examples, and those (N,) above each threshold."""
        is_positive_b1 = ops.cast(ops.greater(self._labels(ops, batch), 0.5), "float32")
        is_above_bn = ops.cast(ops.greater(self._as_logits(ops, outputs), self._logits_n), "float32")
        return {
            _ABOVE: counted(ops, batch, is_above_bn, [0]),
            _POSITIVE_ABOVE: counted(ops, batch, is_above_bn * is_positive_b1, [0]),
            _POSITIVES: counted(ops, batch, is_positive_b1, [0, 1]),
            _EXAMPLES: counted(ops, batch, ops.ones_like(is_positive_b1), [0, 1]),
            **self._keras_metrics.totals(ops, lambda: self._of_keras(ops, outputs, batch)),
        }

    @staticmethod
    def _counts(totals: Mapping[str, Array]) -> thresholds.Counts:
        true_positives = totals[_POSITIVE_ABOVE]
        false_positives = totals[_ABOVE] - true_positives
        positives = float(totals[_POSITIVES])
        return thresholds.Counts(true_positives, false_positives, positives, float(totals[_EXAMPLES]) - positives)

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics at the threshold, the areas, and precision and recall at the config's thresholds."""
        counts = self._counts(totals)
        area = counts.at(self._area_rows)
        others = counts.at(slice(len(area.true_positives), None))
        metrics = {
            "accuracy": float(others.accuracy()[0]),
            "f1": float(others.f1()[0]),
            "precision": float(others.precision()[0]),
            "recall": float(others.recall()[0]),
            "auc": area.area_under_roc(),
            "auc_pr": area.area_under_precision_recall(),
        }
        for row, threshold in enumerate(self._options.thresholds, 1):
            metrics[thresholds.named("precision", threshold)] = float(others.precision()[row])
            metrics[thresholds.named("recall", threshold)] = float(others.recall()[row])
        return {**metrics, **self._keras_metrics.results(totals)}

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model has one output."""
        check_output(shape, (1,), "one logit, that of the positive class")

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns tables of the classes and the thresholds, the confusion matrix, and both curves."""
        del source
        counts = self._counts(evaluation.totals)
        area = counts.at(self._area_rows)
        others = counts.at(slice(len(area.true_positives), None))
        positives = int(as_counts(np.asarray(counts.positives)))
        negatives = int(as_counts(np.asarray(counts.negatives)))
        hits = int(as_counts(others.true_positives)[0])
        false_alarms = int(as_counts(others.false_positives)[0])
        matrix = np.asarray([[negatives - false_alarms, false_alarms], [positives - hits, hits]])
        recall = area.recall().tolist()
        # Where nothing is predicted positive, precision is 0 / 0: such a threshold has no point on the curve.
        precision = area.precision()[area.true_positives + area.false_positives > 0].tolist()
        panels = {
            f"recall by false positive rate (ROC), {split}, area {evaluation.metrics['auc']:.4f}": [
                figures.Curve("", [(0.0, 0.0), (1.0, 1.0)], figures.TRAIN_STEPS, ",", 1.0, dashed=True),
                figures.Curve("", list(zip(area.false_positive_rate().tolist(), recall, strict=True)), marker="."),
            ],
            f"precision by recall, {split}, area {evaluation.metrics['auc_pr']:.4f}": [
                figures.Curve("", list(zip(recall, precision, strict=False)), marker=".")
            ],
        }
        files: dict[str, Callable[[Path], None]] = {
            "confusion.png": partial(pictures.confusion, matrix=matrix, class_names=self.class_names, split=split),
            "curves_at_thresholds.png": partial(figures.curves, panels=panels, along="false positive rate, or recall"),
        }
        tables: dict[str, Table] = {
            "classes": _class_table(self.class_names, matrix),
            "thresholds": self._threshold_table(others),
        }
        return Report(files, tables)

    def _threshold_table(self, others: thresholds.Counts) -> Table:
        named = [self._options.threshold, *self._options.thresholds]
        rows: list[tuple[Cell, ...]] = []
        precision = others.precision()
        recall = others.recall()
        f1 = others.f1()
        for index, threshold in enumerate(named):
            predicted = int(others.true_positives[index] + others.false_positives[index])
            rows.append((threshold, float(precision[index]), float(recall[index]), float(f1[index]), predicted))
        return ("threshold", "precision", "recall", "f1", "predicted positive"), rows


def _class_table(names: Sequence[str], matrix: Array) -> Table:
    """Returns the precision and recall of each class; None if it has no predictions or no examples."""
    rows: list[tuple[Cell, ...]] = []
    for index, name in enumerate(names):
        right = float(matrix[index, index])
        examples = int(matrix[index].sum())
        predicted = int(matrix[:, index].sum())
        precision = right / predicted if predicted else None
        recall = right / examples if examples else None
        rows.append((name, precision, recall, examples, predicted))
    return ("class", "precision", "recall", "examples", "predicted"), rows
