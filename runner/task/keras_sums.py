"""The sums that Keras's metrics are computed from, on every engine's arrays.

Every metric is a function of sums over the examples, or positions, of a split. A batch's sums are computed in float32
on the devices and added in float64 on the host, so a metric depends neither on the batches nor on the mesh.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.data.base import Array
from runner.task.thresholds import Counts, ratio

# Names of sums.
_SUM = "sum"
_WEIGHT = "weight"
_ABOVE = "above"
_TRUE_ABOVE = "true above"
_POSITIVES = "positives"
_COUNTED = "counted"
_RIGHT = "right"
_LABELS = "labels"
_PREDICTED = "predicted"


@dataclass(frozen=True)
class Compared:
    """What a metric compares, of one batch. K is the number of classes, labels or columns; `...` are positions.

    Attributes:
      target: float32 (B, ..., K).
      prediction: float32 (B, ..., K), probabilities if the target has them.
      weight: float32 (B, ...), 0 for padding and for what is not counted.
      label: float32 (B, ..., K) of 0 and 1; None: the target has them.
      logits: float32 (B, ..., K), whose probabilities the predictions are; None: the model returns no logits.
      example_weight: float32 (B,), `task.example_weight`; None: none.
      by_example: sum over each example alone, for sums of so many positions that float32 would round them.
    """

    target: Tensor
    prediction: Tensor
    weight: Tensor
    label: Tensor | None = None
    logits: Tensor | None = None
    example_weight: Tensor | None = None
    by_example: bool = False

    @property
    def flags(self) -> Tensor:
        """The targets as float32 (B, ..., K) of 0 and 1."""
        return self.target if self.label is None else self.label

    def weights(self, ops: Arrays, *, by_example_weight: bool, ignore_class: int | None = None) -> Tensor:
        """Returns the weight (B, ...) of each vector, perhaps times that of its example; 0 for those of a class."""
        weight = self.weight
        if ignore_class is not None:
            is_ignored = ops.sum(self.flags * _one_hot(self.flags, ignore_class), axis=-1)
            weight = ops.where(ops.greater(is_ignored, 0.0), ops.zeros_like(weight), weight)
        if not by_example_weight or self.example_weight is None:
            return weight
        factor = self.example_weight
        for _ in range(len(self.weight.shape) - 1):
            factor = ops.expand_dims(factor, -1)
        return weight * factor

    def summed(self, ops: Arrays, values: Tensor, kept: int = 0) -> Tensor:
        """Returns sums of values (B, ..., *kept dims) over all but the last dims, and perhaps by example."""
        first = 1 if self.by_example else 0
        axes = tuple(range(first, len(values.shape) - kept))
        return ops.sum(values, axis=axes) if axes else values


def _one_hot(flags: Tensor, index: int) -> Array:
    """Returns float32 (K,), 1 for a class.

    For a product instead of an index: DTensor computes some indices of sharded arrays wrongly.
    """
    return np.asarray(np.eye(int(flags.shape[-1]), dtype=np.float32)[index])


# (ops, compared) -> (B, ...) or (B, ..., K), whose mean is a metric.
Terms = Callable[[Arrays, Compared], Tensor]


class Sums(ABC):
    """The sums of one metric, and the metric of the sums."""

    @abstractmethod
    def totals(self, ops: Arrays, compared: Compared, weight: Tensor) -> dict[str, Tensor]:
        """Returns the sums of a batch by name.

        Args:
          ops: the engine's.
          compared: of the batch.
          weight: (B, ...), its weights.
        """

    @abstractmethod
    def results(self, sums: Mapping[str, Array]) -> list[float]:
        """Returns the metric, or several in the order of their names, of float64 sums over a split."""


@dataclass(frozen=True)
class Mean(Sums):
    """A weighted mean over the examples or positions.

    Attributes:
      terms: what the mean is of.
      finish: turns the mean into the metric.
    """

    terms: Terms
    finish: Callable[[float], float] = float

    def totals(self, ops: Arrays, compared: Compared, weight: Tensor) -> dict[str, Tensor]:
        """Returns the weighted sum of the terms, and that of the weights."""
        terms = self.terms(ops, compared)
        if len(terms.shape) > len(weight.shape):
            terms = ops.mean(terms, axis=-1)
        # Selected first: the outputs for padding may be NaN, and NaN * 0 is NaN.
        selected = ops.where(ops.greater(weight, 0.0), terms, ops.zeros_like(terms))
        return {_SUM: compared.summed(ops, selected * weight), _WEIGHT: compared.summed(ops, weight)}

    def results(self, sums: Mapping[str, Array]) -> list[float]:
        """Returns the mean; 0 without any weight."""
        return [self.finish(float(ratio(sums[_SUM], sums[_WEIGHT])))]


@dataclass(frozen=True)
class AtThresholds(Sums):
    """Counts of positive outputs at thresholds of the probability.

    Attributes:
      thresholds: N probabilities, ascending; infinite ones are below or above every probability.
      finish: returns the metrics of the counts of one class, or of all of them together.
      class_id: of the class that is counted; None: all together.
      averages: each class has counts of its own, and the metric is the mean over the classes.
      top_k: number of the largest outputs that can be positive; None: all.
      label_weights: weight of each class, in the counts of all together or in the mean; None: 1.
    """

    thresholds: Sequence[float]
    finish: Callable[[Counts], Sequence[float]]
    class_id: int | None = None
    averages: bool = False
    top_k: int | None = None
    label_weights: Sequence[float] | None = None

    def totals(self, ops: Arrays, compared: Compared, weight: Tensor) -> dict[str, Tensor]:
        """Returns the numbers of outputs above each threshold, those that are positive, and all; by class if averaged.

        Arrays have an entry per class, if averaged, and per threshold.
        """
        flags = compared.flags
        weights = ops.expand_dims(weight, -1) * ops.ones_like(flags)
        if self.class_id is not None:
            weights = weights * _one_hot(flags, self.class_id)
        if self.label_weights is not None and not self.averages:
            weights = weights * np.asarray(self.label_weights, np.float32)
        positive = weights * flags
        limits = np.asarray(self.thresholds, np.float32)
        is_above = ops.cast(ops.greater(ops.expand_dims(compared.prediction, -1), limits), "float32")
        if self.top_k is not None:
            is_above = is_above * ops.expand_dims(largest(ops, compared.prediction, self.top_k), -1)
        kept = 1 if self.averages else 0
        return {
            _ABOVE: compared.summed(ops, is_above * ops.expand_dims(weights, -1), kept + 1),
            _TRUE_ABOVE: compared.summed(ops, is_above * ops.expand_dims(positive, -1), kept + 1),
            _POSITIVES: compared.summed(ops, positive, kept),
            _COUNTED: compared.summed(ops, weights, kept),
        }

    def results(self, sums: Mapping[str, Array]) -> list[float]:
        """Returns the metrics, averaged over the classes if they have counts of their own."""
        count = len(self.thresholds)
        above = sums[_ABOVE].reshape(-1, count)
        true_above = sums[_TRUE_ABOVE].reshape(-1, count)
        positives = sums[_POSITIVES].reshape(-1)
        negatives = sums[_COUNTED].reshape(-1) - positives
        by_class = []
        for index in range(len(positives)):
            false_above = above[index] - true_above[index]
            counts = Counts(true_above[index], false_above, float(positives[index]), float(negatives[index]))
            by_class.append(self.finish(counts))
        shares = self.label_weights if self.averages else None
        return [float(value) for value in np.average(by_class, axis=0, weights=shares)]


@dataclass(frozen=True)
class ByClass(Sums):
    """Counts of right predictions, labels and predictions of each class.

    Attributes:
      finish: returns the metric of these three, float64 (K,) each.
      threshold: probability above which a class is predicted; None: the class with the largest output is.
    """

    finish: Callable[[Array, Array, Array], float]
    threshold: float | None = None

    def totals(self, ops: Arrays, compared: Compared, weight: Tensor) -> dict[str, Tensor]:
        """Returns the counts per class (K,)."""
        classes = int(compared.prediction.shape[-1])
        if self.threshold is None:
            predicted = ops.one_hot(ops.argmax(compared.prediction, -1), classes)
        else:
            predicted = ops.cast(ops.greater(compared.prediction, self.threshold), "float32")
        weights = ops.expand_dims(weight, -1)
        labels = compared.flags * weights
        return {
            _RIGHT: compared.summed(ops, labels * predicted, 1),
            _LABELS: compared.summed(ops, labels, 1),
            _PREDICTED: compared.summed(ops, predicted * weights, 1),
        }

    def results(self, sums: Mapping[str, Array]) -> list[float]:
        """Returns the metric."""
        return [float(self.finish(sums[_RIGHT], sums[_LABELS], sums[_PREDICTED]))]


@dataclass(frozen=True)
class OfZeroAndOne(Sums):
    """Intersection over union of the outputs below a threshold, class 0, and of the others, class 1.

    Attributes:
      threshold: the probability.
      class_ids: classes whose mean is the metric.
    """

    threshold: float
    class_ids: Sequence[int]

    def totals(self, ops: Arrays, compared: Compared, weight: Tensor) -> dict[str, Tensor]:
        """Returns the numbers of outputs of 1, of targets of 1, of both, and of all."""
        weights = ops.expand_dims(weight, -1) * ops.ones_like(compared.flags)
        labels = compared.flags * weights
        predicted = ops.cast(ops.greater_equal(compared.prediction, self.threshold), "float32")
        return {
            _RIGHT: compared.summed(ops, labels * predicted),
            _LABELS: compared.summed(ops, labels),
            _PREDICTED: compared.summed(ops, predicted * weights),
            _COUNTED: compared.summed(ops, weights),
        }

    def results(self, sums: Mapping[str, Array]) -> list[float]:
        """Returns the mean over the classes."""
        right, labels, predicted, counted = (float(sums[name]) for name in (_RIGHT, _LABELS, _PREDICTED, _COUNTED))
        right_of_0 = counted - labels - predicted + right
        both = (
            np.asarray([right_of_0, right]),
            np.asarray([counted - labels, labels]),
            np.asarray([counted - predicted, predicted]),
        )
        return [mean_iou(*(array[list(self.class_ids)] for array in both))]


def iou(right: Array, labels: Array, predicted: Array) -> Array:
    """Returns intersection over union per class (Jaccard index), 0 without any label or prediction."""
    return ratio(right, labels + predicted - right)


def mean_iou(right: Array, labels: Array, predicted: Array) -> float:
    """Returns the mean of `iou` over the classes that are labels or predictions."""
    count = max(float(np.sum(labels + predicted > 0)), 1.0)
    return float(iou(right, labels, predicted).sum() / count)


def f_beta(average: str, beta: float, right: Array, labels: Array, predicted: Array) -> float:
    """Returns the F score of counts per class (K,), 0 for a class without any label or prediction.

    Args:
      average: `micro`: of all classes together; `macro`: mean over the classes; `weighted`: with their labels.
      beta: weight of recall relative to precision.
      right: numbers of right predictions.
      labels: numbers of labels.
      predicted: numbers of predictions.
    """
    if average == "micro":
        right, labels, predicted = right.sum(), labels.sum(), predicted.sum()
    squared_beta = beta * beta
    scores = ratio((1.0 + squared_beta) * right, squared_beta * labels + predicted)
    if average == "weighted":
        return float(ratio((scores * labels).sum(), labels.sum()))
    return float(scores.mean())


def is_in_top(ops: Arrays, outputs: Tensor, label_one_hot: Tensor, k: int) -> Tensor:
    """Returns bool (B, ...): the label's output is finite, and fewer than k outputs are larger.

    Args:
      ops: the engine's.
      outputs: (B, ..., C).
      label_one_hot: float32 (B, ..., C).
      k: number of outputs.
    """
    is_label = ops.greater(label_one_hot, 0.0)
    label_output = ops.sum(ops.where(is_label, outputs, ops.zeros_like(outputs)), axis=-1, keepdims=True)
    larger = ops.sum(ops.cast(ops.greater(outputs, label_output), "float32"), axis=-1)
    is_finite = ops.isfinite(ops.sum(label_output, axis=-1))
    return ops.logical_and(ops.less(larger, float(k)), is_finite)


def largest(ops: Arrays, outputs: Tensor, k: int) -> Tensor:
    """Returns float32 (B, ..., K), 1 for the k largest outputs; of equal ones the first, as in Keras.

    Args:
      ops: the engine's.
      outputs: (B, ..., K).
      k: at most K.
    """
    classes = int(outputs.shape[-1])
    found = ops.zeros_like(outputs)
    for _ in range(k):
        others = ops.where(ops.greater(found, 0.0), ops.ones_like(outputs) * -math.inf, outputs)
        found = found + ops.one_hot(ops.argmax(others, -1), classes)
    return found


def largest_where(values: Array, limited: Array, limit: float) -> float:
    """Returns the largest of values (N,) where others (N,) reach a limit; 0 if they never do."""
    return float(np.where(limited >= limit, values, 0.0).max(initial=0.0))


def specificity(counts: Counts) -> Array:
    """Returns the share of the negative examples that are not above a threshold; 0 without any."""
    return ratio(counts.negatives - counts.false_positives, np.asarray(counts.negatives))


def evenly_spaced(count: int) -> list[float]:
    """Returns thresholds from 0 to 1. As in Keras, a probability of 0 counts as above the first of them."""
    return [-math.inf, *(index / (count - 1) for index in range(1, count))]
