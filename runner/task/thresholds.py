"""Counts of two classes at thresholds of the probability, and the areas under their curves.

A metric of Keras with thresholds (AUC, Precision, Recall) keeps sums of the examples above each threshold. These are
integers that add up over batches, so the metrics are exact over any batches, meshes and numbers of processes. An area
is that of the curve through the thresholds: with more of them it approaches the area over all examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array
from runner.errors import invalid

# Shares of a probability that `named` shows: more digits would only name the same threshold differently.
_DIGITS = 6


def of_area(count: int) -> list[float]:
    """Returns the thresholds of an area: below every probability, evenly between 0 and 1, and above every one.

    https://keras.io/api/metrics/classification_metrics/#auc-class
    """
    between = [index / (count - 1) for index in range(1, count - 1)]
    return [-math.inf, *between, math.inf]


def as_logits(probabilities: Sequence[float]) -> Array:
    """Returns float32 logits (N,) of probabilities; -inf and inf are themselves.

    A logit above that of a threshold is a probability above the threshold, without the rounding of a sigmoid.
    """
    logits = []
    for probability in probabilities:
        if 0.0 < probability < 1.0:
            logits.append(math.log(probability / (1.0 - probability)))
        else:
            logits.append(math.copysign(math.inf, probability))
    return np.asarray(logits, np.float32)


def named(metric: str, threshold: float) -> str:
    """Returns the name of a metric at a threshold, such as `recall_0.3`."""
    return f"{metric}_{round(threshold, _DIGITS):g}"


def names(thresholds: Sequence[float]) -> list[str]:
    """Returns the names of a task's metrics at thresholds of its config."""
    return [named(metric, threshold) for threshold in thresholds for metric in ("precision", "recall")]


def check_names(thresholds: Sequence[float]) -> None:
    """Checks that the metrics at some thresholds have different names.

    Raises:
      ConfigError: two thresholds have one name.
    """
    names = [named("recall", threshold) for threshold in thresholds]
    if len(set(names)) < len(names):
        raise invalid(
            "task.thresholds",
            list(thresholds),
            problem="thresholds must differ in their first 6 digits, which name their metrics",
            fix="remove one of them",
        )


@dataclass(frozen=True)
class Counts:
    """Float64 counts of examples, one entry per threshold.

    Attributes:
      true_positives: positive examples above the threshold.
      false_positives: negative examples above it.
      positives: all positive examples, one number.
      negatives: all negative examples, one number.
    """

    true_positives: Array
    false_positives: Array
    positives: float
    negatives: float

    def at(self, rows: slice) -> Counts:
        """Returns the counts at some of the thresholds."""
        return Counts(self.true_positives[rows], self.false_positives[rows], self.positives, self.negatives)

    def precision(self) -> Array:
        """Returns the share of the examples above a threshold that are positive; 0 without any."""
        return ratio(self.true_positives, self.true_positives + self.false_positives)

    def recall(self) -> Array:
        """Returns the share of the positive examples that are above a threshold; 0 without any."""
        return ratio(self.true_positives, np.asarray(self.positives))

    def false_positive_rate(self) -> Array:
        """Returns the share of the negative examples that are above a threshold; 0 without any."""
        return ratio(self.false_positives, np.asarray(self.negatives))

    def f1(self) -> Array:
        """Returns the harmonic mean of precision and recall; 0 without any."""
        return ratio(2.0 * self.true_positives, self.true_positives + self.false_positives + self.positives)

    def accuracy(self) -> Array:
        """Returns the share of the examples that are on their side of a threshold."""
        right = self.true_positives + self.negatives - self.false_positives
        return ratio(right, np.asarray(self.positives + self.negatives))

    def area_under_roc(self) -> float:
        """Returns the area under recall over the false positive rate, by trapezoids; thresholds must ascend."""
        rate, recall = self.false_positive_rate(), self.recall()
        return float(np.sum((rate[:-1] - rate[1:]) * (recall[:-1] + recall[1:]) / 2.0))

    def area_under_precision_recall(self) -> float:
        """Returns the area under precision over recall; thresholds must ascend.

        Between two thresholds the true positives are taken to grow linearly with the predicted ones, and the precision
        with them: Davis and Goadrich, The Relationship Between Precision-Recall and ROC Curves (2006), section 4.
        """
        predicted = self.true_positives + self.false_positives
        higher_predicted = predicted[1:]
        # Between a threshold and the next higher one: added true positives, and added predictions.
        added_true = self.true_positives[:-1] - self.true_positives[1:]
        added = predicted[:-1] - higher_predicted
        slope = ratio(added_true, added)
        # True positives are intercept + slope * predictions; the integral of their ratio over the recall has a
        # logarithm, whose term is 0 where no example is above the higher threshold.
        intercept = self.true_positives[1:] - slope * higher_predicted
        has_both = (predicted[:-1] > 0) & (higher_predicted > 0)
        growth = np.where(has_both, predicted[:-1] / np.where(has_both, higher_predicted, 1.0), 1.0)
        areas = slope * (added_true + intercept * np.log(growth))
        return float(np.sum(ratio(areas, np.asarray(self.positives))))


def ratio(part: Array, whole: Array) -> Array:
    """Returns part / whole, 0 where the whole is 0."""
    return np.asarray(np.where(whole > 0, part, 0.0) / np.where(whole > 0, whole, 1.0))
