"""One of two classes per example, by one logit: sigmoid cross-entropy, areas under curves, precision and recall."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import BinaryOptions, TaskConfig
from runner.data.base import Array, ArraySpec, DataSource
from runner.errors import did_you_mean, invalid
from runner.host.late import late
from runner.task import classes
from runner.task.base import Evaluation, OutputSpec, Report, TaskData
from runner.task.metrics import MAXIMIZE
from runner.task.sigmoids import AGREE, EXAMPLES, FOUND, POSITIVES, PREDICTED, OfSigmoids
from runner.task.supervised import (
    as_counts,
    as_vector,
    check_output,
    class_table,
    columns,
    counted,
    ratio,
    read_columns,
)

if TYPE_CHECKING:
    from runner import figures
    from runner.task import pictures
else:
    figures = late("runner.figures")
    pictures = late("runner.task.pictures")

# Names of the sums of `Binary.totals` that have an entry per threshold of the areas.
_ABOVE = "above"
_POSITIVE_ABOVE = "positive_above"
# Logits of Keras's 200 thresholds of an area: below every probability, evenly between 0 and 1, and above every one.
# The counts above them add up over batches, so areas are exact over any batches, meshes and numbers of processes.
_BETWEEN = [math.log(index / (199 - index)) for index in range(1, 199)]
_AREA_LOGITS = np.asarray([-math.inf, *_BETWEEN, math.inf], np.float32)


class Binary(OfSigmoids):
    """Two classes: 0 and 1, false and true, or two named categories. The model returns one number (B, 1).

    Shapes: B examples, N thresholds.

    Attributes:
      class_names: of the negative and of the positive class.
    """

    own_metrics = dict.fromkeys(("accuracy", "f1", "precision", "recall", "auc", "auc_pr"), MAXIMIZE)
    step_metrics = ("accuracy",)

    def __init__(self, config: TaskConfig, options: BinaryOptions, data: TaskData) -> None:
        super().__init__(config, options, data)
        target = self._check_target(data.arrays)
        # 0 and 1, unless the dataset has names for its two categories.
        names = data.arrays[target].names or ("0", "1")
        self._is_flipped = self._check_positive(names)
        self.class_names = tuple(reversed(names)) if self._is_flipped else tuple(names)
        self.outputs = OutputSpec(1, self.class_names[1:])
        self._settle_keras(size=1)
        if data.train is not None:
            self.check_split(data.train, "train")
        weights = classes.weights_of(options.class_weights, names, data, self._count_examples)
        if weights is not None:
            self._class_weights = weights
            self.constants = classes.weight_constants(options.class_weights, weights)

    def _check_target(self, arrays: Mapping[str, ArraySpec]) -> str:
        name = self._sole_target("task=binary needs one array", fix="name one array, or set task=multilabel")
        spec = arrays[name]
        if spec.shape not in ((), (1,)) or np.dtype(spec.dtype).kind not in "biuf":
            problem = f"task=binary needs one 0 or 1 per example, but its dtype is {spec.dtype} and its shape "
            fix = "name another array, or set task=multilabel for several labels per example"
            raise invalid("task.target", name, problem=f"{problem}{list(spec.shape)}", fix=fix)
        if spec.names and len(spec.names) != 2:
            problem = f"task=binary needs two classes, but it has {len(spec.names)}"
            raise invalid("task.target", name, problem=problem, fix="set task=classification")
        return name

    def _check_positive(self, names: Sequence[str]) -> bool:
        positive = self._options.positive
        if positive is None:
            return False
        if str(positive) not in names:
            problem = f"must be one of the two classes, {names[0]} and {names[1]}"
            fix = did_you_mean(str(positive), names, f"set task.positive={names[1]}")
            raise invalid("task.positive", positive, problem=problem, fix=fix)
        return str(positive) == names[0]

    def _count_examples(self, train: DataSource) -> Array:
        """Returns the number of examples (2,) of label 0 and of label 1."""
        labels = read_columns(train, self.target_names)[self.target_names[0]].astype(np.float64)
        return np.asarray([labels.size - labels.sum(), labels.sum()])

    def _labels(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, 1), 1 for the positive class."""
        label_b1 = super()._labels(ops, batch)
        return 1.0 - label_b1 if self._is_flipped else label_b1

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), times its class weight and its sample weight."""
        loss_b = self._mean_terms(ops, outputs, batch)
        if self._class_weights is not None:
            # The weights are those of the dataset's own 0 and 1.
            own_b = as_vector(ops, columns(ops, batch, self.target_names))
            weight_0, weight_1 = self._class_weights
            loss_b = loss_b * (weight_0 + (weight_1 - weight_0) * own_b)
        return self._weighted(ops, loss_b, batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns 1 for each correctly classified example, else 0."""
        _, _, agree_b1 = self._compared(ops, outputs, batch)
        return {"accuracy": ops.sum(agree_b1, axis=-1)}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns those of `OfSigmoids`, and the numbers (N,) of all and of positive examples above each threshold."""
        label_b1, _, _ = self._compared(ops, outputs, batch)
        is_above_bn = ops.cast(ops.greater(self._as_logits(ops, outputs), _AREA_LOGITS), "float32")
        return {
            **super().totals(ops, outputs, batch),
            _ABOVE: counted(ops, batch, is_above_bn, [0]),
            _POSITIVE_ABOVE: counted(ops, batch, is_above_bn * label_b1, [0]),
        }

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics at the threshold, and the areas."""
        found = totals[FOUND].sum()
        positives = totals[POSITIVES].sum()
        predicted = totals[PREDICTED].sum()
        recall, false_positive_rate = _rates(totals)
        auc = np.sum((false_positive_rate[:-1] - false_positive_rate[1:]) * (recall[:-1] + recall[1:]) / 2.0)
        metrics = {
            "accuracy": float(ratio(totals[AGREE].sum(), totals[EXAMPLES])),
            "f1": float(ratio(2.0 * found, predicted + positives)),
            "precision": float(ratio(found, predicted)),
            "recall": float(ratio(found, positives)),
            "auc": float(auc),
            "auc_pr": _area_under_precision_recall(totals),
        }
        return {**metrics, **self._keras_metrics.results(totals)}

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model has one output."""
        check_output(shape, (1,), "one logit, that of the positive class")

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the classes, the confusion matrix, and both curves."""
        del source
        totals = evaluation.totals
        hits = int(as_counts(totals[FOUND])[0])
        positives = int(as_counts(totals[POSITIVES])[0])
        false_alarms = int(as_counts(totals[PREDICTED])[0]) - hits
        negatives = int(as_counts(totals[EXAMPLES])) - positives
        matrix = np.asarray([[negatives - false_alarms, false_alarms], [positives - hits, hits]])
        recall, false_positive_rate = (rates.tolist() for rates in _rates(totals))
        # Where nothing is predicted positive, precision is 0 / 0: such a threshold has no point on the curve.
        is_defined = totals[_ABOVE] > 0
        precision = (totals[_POSITIVE_ABOVE][is_defined] / totals[_ABOVE][is_defined]).tolist()
        panels = {
            f"recall by false positive rate (ROC), {split}, area {evaluation.metrics['auc']:.4f}": [
                figures.Curve("", [(0.0, 0.0), (1.0, 1.0)], figures.TRAIN_STEPS, ",", 1.0, dashed=True),
                figures.Curve("", list(zip(false_positive_rate, recall, strict=True)), marker="."),
            ],
            f"precision by recall, {split}, area {evaluation.metrics['auc_pr']:.4f}": [
                figures.Curve("", list(zip(recall, precision, strict=False)), marker=".")
            ],
        }
        files: dict[str, Callable[[Path], None]] = {
            "confusion.png": partial(pictures.confusion, matrix=matrix, class_names=self.class_names, split=split),
            "curves_at_thresholds.png": partial(figures.curves, panels=panels, along="false positive rate, or recall"),
        }
        table = class_table(self.class_names, np.diag(matrix), matrix.sum(1), matrix.sum(0))
        return Report(files, {"classes": table})


def _rates(totals: Mapping[str, Array]) -> tuple[Array, Array]:
    """Returns the shares (N,) of the positive and of the negative examples that are above each threshold."""
    positives = totals[POSITIVES].sum()
    negatives = totals[EXAMPLES] - positives
    false_positives = totals[_ABOVE] - totals[_POSITIVE_ABOVE]
    return ratio(totals[_POSITIVE_ABOVE], positives), ratio(false_positives, negatives)


def _area_under_precision_recall(totals: Mapping[str, Array]) -> float:
    """Returns the area under precision over recall.

    Between two thresholds the true positives are taken to grow linearly with the predicted ones, and the precision
    with them: Davis and Goadrich, The Relationship Between Precision-Recall and ROC Curves (2006), section 4.
    """
    predicted = totals[_ABOVE]
    true_positives = totals[_POSITIVE_ABOVE]
    higher_predicted = predicted[1:]
    # Between a threshold and the next higher one: added true positives, and added predictions.
    added_true = true_positives[:-1] - true_positives[1:]
    slope = ratio(added_true, predicted[:-1] - higher_predicted)
    # True positives are intercept + slope * predictions; the integral of their ratio over the recall has a logarithm,
    # whose term is 0 where no example is above the higher threshold.
    intercept = true_positives[1:] - slope * higher_predicted
    has_both = (predicted[:-1] > 0) & (higher_predicted > 0)
    growth = np.where(has_both, predicted[:-1] / np.where(has_both, higher_predicted, 1.0), 1.0)
    areas = slope * (added_true + intercept * np.log(growth))
    return float(np.sum(ratio(areas, totals[POSITIVES].sum())))
