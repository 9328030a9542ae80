"""Options of Keras's metric classes, as `task.metrics` takes them. Imports no Keras.

Names and defaults are those of Keras 3.15's constructors, which tests/task/test_keras_metrics.py compares them with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from runner.config.fields import Problem, checked, choice, entries, integer, number
from runner.errors import shown

# Arguments that Keras requires too.
_REQUIRED: Any = MISSING
# A metric's name is a part of a logged name, such as `eval/auc`, and of a key of the config.
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def _name_problem(name: str) -> str | None:
    """Returns what is wrong with the name of a metric, or None."""
    if _NAME.fullmatch(name):
        return None
    return "must consist of letters, digits and _, and begin with a letter"


def _thresholds_problem(thresholds: object) -> str | None:
    """Returns what is wrong with a list of thresholds, or None."""
    assert isinstance(thresholds, list)
    if not thresholds:
        return "needs at least one threshold"
    for threshold in thresholds:
        if not 0 <= threshold <= 1:
            return f"a threshold must be from 0 to 1, not {shown(threshold)}"
    if len(set(thresholds)) < len(thresholds):
        return Problem("thresholds must be unique", fix="remove one of them")
    return None


def _label_weights_problem(weights: object) -> str | None:
    """Returns what is wrong with the weights of labels, or None."""
    assert isinstance(weights, list)
    if not weights or min(weights) < 0 or max(weights) <= 0:
        return "must have a weight of at least 0 per label, and one above 0"
    return None


def _class_ids_problem(class_ids: object) -> str | None:
    """Returns what is wrong with a list of classes, or None."""
    assert isinstance(class_ids, list)
    if not class_ids or min(class_ids) < 0 or len(set(class_ids)) < len(class_ids):
        return "must list different classes, by their numbers from 0"
    return None


@dataclass(frozen=True)
class KerasMetric:
    """Base of the options of a metric.

    Attributes:
      name: name in logs; null: that of Keras, such as `auc`.
      weighted: multiply each example by `task.example_weight`, as Keras's `weighted_metrics` does.
    """

    name: str | None = checked(None, test=_name_problem, rule="letters, digits and _", example="auc_pr")
    weighted: bool = False


@dataclass(frozen=True)
class OfClass(KerasMetric):
    """Base of the options of a metric that can be of one class or label.

    Attributes:
      class_id: number of the class or label that is counted, from 0; null: all together.
    """

    class_id: int | None = integer(None, at_least=0, example=0)


@dataclass(frozen=True)
class Counted(OfClass):
    """Base of the options of counts at thresholds.

    Attributes:
      thresholds: probabilities above which an output is positive; with several, each has a metric of its own; null:
        0.5, or none with `top_k`.
    """

    thresholds: list[float] | None = entries(None, whole=_thresholds_problem, rule="from 0 to 1", example=[0.5])


@dataclass(frozen=True)
class OfLargest(Counted):
    """Base of the options of counts of the largest outputs.

    Attributes:
      top_k: number of largest outputs of an example or position that can be positive; null: all.
    """

    top_k: int | None = integer(None, at_least=1, at_most=100, example=3)


@dataclass(frozen=True)
class Best(OfClass):
    """Base of the options of the best value over evenly spaced thresholds.

    Attributes:
      num_thresholds: number of thresholds from 0 to 1.
    """

    num_thresholds: int = integer(200, at_least=2, at_most=100_000)


@dataclass(frozen=True)
class AUC(KerasMetric):
    """Area under a curve through the counts at thresholds.

    Attributes:
      num_thresholds: number of thresholds, between which the curve is interpolated.
      curve: `ROC`, `PR` for precision over recall, or `PRGAIN` for their gains.
      multi_label: mean of the areas of the classes or labels; false: all of them together.
      thresholds: the thresholds between 0 and 1; null: `num_thresholds` at equal distances.
      summation_method: heights between two thresholds: `interpolation`, or the smaller (`minoring`) or larger one
        (`majoring`).
      label_weights: weight of each class or label, in the mean of the areas or in the counts; null: 1.
    """

    num_thresholds: int = integer(200, at_least=3, at_most=100_000)
    curve: str = choice("ROC", "ROC", "PR", "PRGAIN")
    multi_label: bool = False
    thresholds: list[float] | None = entries(None, whole=_thresholds_problem, rule="from 0 to 1", example=[0.5])
    summation_method: str = choice("interpolation", "interpolation", "minoring", "majoring")
    label_weights: list[float] | None = entries(
        None, whole=_label_weights_problem, rule="at least 0, one above 0", example=[1.0, 2.0]
    )


@dataclass(frozen=True)
class Precision(OfLargest):
    """Share of the positive outputs that are right."""


@dataclass(frozen=True)
class Recall(OfLargest):
    """Share of the positive targets that are found."""


@dataclass(frozen=True)
class TruePositives(Counted):
    """Number of positive outputs that are right."""


@dataclass(frozen=True)
class FalsePositives(Counted):
    """Number of positive outputs that are wrong."""


@dataclass(frozen=True)
class TrueNegatives(Counted):
    """Number of negative outputs that are right."""


@dataclass(frozen=True)
class FalseNegatives(Counted):
    """Number of negative outputs that are wrong."""


@dataclass(frozen=True, kw_only=True)
class SensitivityAtSpecificity(Best):
    """Best sensitivity at a specificity of at least a number.

    Attributes:
      specificity: the number.
    """

    specificity: float = number(_REQUIRED, at_least=0.0, at_most=1.0, example=0.9)


@dataclass(frozen=True, kw_only=True)
class SpecificityAtSensitivity(Best):
    """Best specificity at a sensitivity of at least a number.

    Attributes:
      sensitivity: the number.
    """

    sensitivity: float = number(_REQUIRED, at_least=0.0, at_most=1.0, example=0.9)


@dataclass(frozen=True, kw_only=True)
class PrecisionAtRecall(Best):
    """Best precision at a recall of at least a number.

    Attributes:
      recall: the number.
    """

    recall: float = number(_REQUIRED, at_least=0.0, at_most=1.0, example=0.9)


@dataclass(frozen=True, kw_only=True)
class RecallAtPrecision(Best):
    """Best recall at a precision of at least a number.

    Attributes:
      precision: the number.
    """

    precision: float = number(_REQUIRED, at_least=0.0, at_most=1.0, example=0.9)


@dataclass(frozen=True)
class F1Score(KerasMetric):
    """Harmonic mean of precision and recall.

    Attributes:
      average: `macro` is the mean over the classes, `weighted` that with their numbers of targets as weights, and
        `micro` is of all classes together. Keras's default, one number per class, is not supported.
      threshold: probability above which an output is positive; null: that of the largest output alone.
    """

    average: str = choice("macro", "macro", "micro", "weighted")
    threshold: float | None = number(None, above=0.0, at_most=1.0, example=0.5)


@dataclass(frozen=True)
class FBetaScore(F1Score):
    """Weighted harmonic mean of precision and recall.

    Attributes:
      beta: weight of recall relative to precision.
    """

    beta: float = number(1.0, above=0.0)


@dataclass(frozen=True)
class Ignoring(KerasMetric):
    """Base of the options of a metric that can leave a class out.

    Attributes:
      ignore_class: number of the class whose examples or positions are not counted, from 0; null: none.
    """

    ignore_class: int | None = integer(None, at_least=0, example=0)


@dataclass(frozen=True)
class MeanIoU(Ignoring):
    """Mean over the classes of intersection over union, of the class with the largest output."""


@dataclass(frozen=True)
class OneHotMeanIoU(MeanIoU):
    """The same as `MeanIoU`: a task decides on its own whether targets are one-hot."""


@dataclass(frozen=True, kw_only=True)
class IoU(Ignoring):
    """Mean over some classes of intersection over union, of the class with the largest output.

    Attributes:
      target_class_ids: numbers of these classes, from 0.
    """

    target_class_ids: list[int] = entries(_REQUIRED, whole=_class_ids_problem, rule="different classes", example=[0])


@dataclass(frozen=True)
class OneHotIoU(IoU):
    """The same as `IoU`: a task decides on its own whether targets are one-hot."""


@dataclass(frozen=True)
class BinaryIoU(KerasMetric):
    """Mean over 0 and 1 of intersection over union.

    Attributes:
      target_class_ids: 0, 1 or both.
      threshold: probability from which an output is 1.
    """

    target_class_ids: list[int] = entries([0, 1], at_most=1, whole=_class_ids_problem, rule="0 or 1", example=[0, 1])
    threshold: float = number(0.5, at_least=0.0, at_most=1.0)


@dataclass(frozen=True)
class Accuracy(KerasMetric):
    """Share of right predictions."""


@dataclass(frozen=True)
class BinaryAccuracy(KerasMetric):
    """Share of right predictions of 0 or 1.

    Attributes:
      threshold: probability above which an output is 1.
    """

    threshold: float = number(0.5, at_least=0.0, at_most=1.0)


@dataclass(frozen=True)
class CategoricalAccuracy(KerasMetric):
    """Share of examples or positions whose class has the largest output."""


@dataclass(frozen=True)
class SparseCategoricalAccuracy(CategoricalAccuracy):
    """The same as `CategoricalAccuracy`: a task decides on its own whether targets are one-hot."""


@dataclass(frozen=True)
class TopKCategoricalAccuracy(KerasMetric):
    """Share of examples or positions whose class is among the largest outputs.

    Attributes:
      k: number of these outputs.
    """

    k: int = integer(5, at_least=1)


@dataclass(frozen=True)
class SparseTopKCategoricalAccuracy(TopKCategoricalAccuracy):
    """The same as `TopKCategoricalAccuracy`: a task decides on its own whether targets are one-hot."""


@dataclass(frozen=True)
class Smoothed(KerasMetric):
    """Base of the options of a cross-entropy.

    Attributes:
      label_smoothing: fraction of each label that is spread over all classes, or moved to 0.5.
    """

    label_smoothing: float = number(0.0, at_least=0.0, below=1.0)


@dataclass(frozen=True)
class BinaryCrossentropy(Smoothed):
    """Sigmoid cross-entropy in nats, without the task's class weights and label smoothing."""


@dataclass(frozen=True)
class CategoricalCrossentropy(Smoothed):
    """Softmax cross-entropy in nats, without the task's class weights and label smoothing."""


@dataclass(frozen=True)
class SparseCategoricalCrossentropy(KerasMetric):
    """The same as `CategoricalCrossentropy`: a task decides on its own whether targets are one-hot."""


@dataclass(frozen=True)
class MeanSquaredError(KerasMetric):
    """Mean of (output - target) ** 2."""


@dataclass(frozen=True)
class RootMeanSquaredError(KerasMetric):
    """Square root of the mean of (output - target) ** 2."""


@dataclass(frozen=True)
class MeanAbsoluteError(KerasMetric):
    """Mean of the absolute errors."""


@dataclass(frozen=True)
class MeanAbsolutePercentageError(KerasMetric):
    """Mean of the absolute errors, in percent of the target."""


@dataclass(frozen=True)
class MeanSquaredLogarithmicError(KerasMetric):
    """Mean of (log(output + 1) - log(target + 1)) ** 2."""


@dataclass(frozen=True)
class LogCoshError(KerasMetric):
    """Mean of log(cosh(output - target))."""


@dataclass(frozen=True)
class Poisson(KerasMetric):
    """Mean of output - target * log(output)."""


@dataclass(frozen=True)
class KLDivergence(KerasMetric):
    """Mean divergence of the outputs from the targets, both probabilities."""


@dataclass(frozen=True)
class CosineSimilarity(KerasMetric):
    """Mean cosine of the angle between output and target, vectors in the last dim."""


@dataclass(frozen=True)
class Hinge(KerasMetric):
    """Mean of max(1 - target * output, 0), of targets -1 and 1."""


@dataclass(frozen=True)
class SquaredHinge(KerasMetric):
    """Mean of max(1 - target * output, 0) ** 2, of targets -1 and 1."""


@dataclass(frozen=True)
class CategoricalHinge(KerasMetric):
    """Mean of max(largest other output - target's output + 1, 0)."""


@dataclass(frozen=True)
class R2Score(KerasMetric):
    """Mean over the columns of 1 - squared errors / squared deviations of the target."""


# Bases of the classes above, which are not metrics.
_BASES = (KerasMetric, OfClass, Counted, OfLargest, Best, Ignoring, Smoothed)
# Name of a class in `keras.metrics` -> its options.
OPTIONS: Mapping[str, type[KerasMetric]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, KerasMetric) and kind not in _BASES
}

# Arguments of Keras's constructors that are not options here, or not of every class -> why not.
LEFT_OUT: Mapping[str, str] = {
    "axis": "the classes or columns are in the last dim",
    "class_aggregation": "the metric is the mean over the columns",
    "dtype": "sums are float32 on the devices and float64 on the host",
    "from_logits": "the task itself knows whether the model returns logits",
    "from_sorted_ids": "the model returns scores of classes, not their sorted numbers",
    # Without sample weights, Keras 3.15 divides the sum over the other examples by the number of all of them.
    "ignore_class": "Keras leaves the class out of the divisor only if there are weights",
    "num_classes": "the number is that of the dataset",
    "num_labels": "the number is that of the dataset",
    "num_regressors": "the metric is not adjusted to a number of inputs",
    "sparse_y_pred": "the task itself knows the form of its outputs",
    "sparse_y_true": "the task itself knows the form of its targets",
}


def metrics_problem(metrics: object) -> str | None:
    """Returns what is wrong with the form of `task.metrics`, or None; names and options are checked with the task."""
    if isinstance(metrics, Mapping):
        listed_metrics: list[object] = [{name: options} for name, options in metrics.items()]
    elif isinstance(metrics, list):
        listed_metrics = metrics
    else:
        return "must be a list of metrics, or a mapping from metrics to their options"
    for metric in listed_metrics:
        if isinstance(metric, str):
            continue
        if not isinstance(metric, Mapping) or len(metric) != 1:
            return f"each must be the name of a metric, or {{name: {{option: value}}}}, not {shown(metric)}"
        ((name, options),) = metric.items()
        if not isinstance(options, Mapping) and options is not None:
            return f"the options of {name} must be {{option: value}}, not {shown(options)}"
    return None
