"""Drawn targets and outputs of each task, with the Keras metrics that are compared on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from runner.data.base import ArraySpec
from tests.task import cases

CLASSES, IGNORED = 4, 255
# Of the errors of probabilities.
_ERRORS: list[Any] = ["MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError"]
_CURVES: list[Any] = [
    {"AUC": {"num_thresholds": 50, "name": "auc_50"}},
    {"AUC": {"num_thresholds": 50, "curve": "PR", "name": "auc_50_pr"}},
    {"AUC": {"num_thresholds": 30, "multi_label": True, "name": "auc_mean"}},
    {"Precision": {"thresholds": [0.3, 0.7], "name": "at"}},
    {"Recall": {"thresholds": [0.3, 0.7], "name": "found_at"}},
    {"TruePositives": {"thresholds": [0.2]}},
    {"FalsePositives": {"thresholds": [0.2]}},
    {"TrueNegatives": {"thresholds": [0.2]}},
    {"FalseNegatives": {"thresholds": [0.2]}},
    {"SensitivityAtSpecificity": {"specificity": 0.6}},
    {"SpecificityAtSensitivity": {"sensitivity": 0.6, "num_thresholds": 90}},
    {"PrecisionAtRecall": {"recall": 0.4}},
    {"RecallAtPrecision": {"precision": 0.4}},
    "KLDivergence",
]
# Of at least four classes or labels.
_LARGEST: list[Any] = [
    {"Precision": {"top_k": 2, "name": "precision_of_2_largest"}},
    {"Recall": {"top_k": 1, "name": "recall_of_largest"}},
    {"Precision": {"top_k": 3, "thresholds": [0.3], "name": "precision_of_3_above"}},
    {"Recall": {"top_k": 2, "class_id": 1, "name": "recall_of_1_in_2"}},
    {"Precision": {"top_k": 4, "class_id": 3, "name": "precision_of_3_in_4"}},
]
_AREAS: list[Any] = [
    {"AUC": {"thresholds": [0.7, 0.1, 0.45], "name": "area_at"}},
    {"AUC": {"summation_method": "majoring", "num_thresholds": 20, "name": "larger_area"}},
    {"AUC": {"summation_method": "minoring", "curve": "PR", "num_thresholds": 20, "name": "smaller_pr_area"}},
    {"AUC": {"curve": "PRGAIN", "num_thresholds": 20, "name": "area_of_gains"}},
    {"AUC": {"curve": "PRGAIN", "summation_method": "majoring", "thresholds": [0.4], "name": "larger_area_of_gains"}},
]
_OF_CLASS: list[Any] = [
    {"Precision": {"class_id": 1, "thresholds": [0.3], "name": "precision_of_1"}},
    {"Recall": {"class_id": 2, "thresholds": [0.3], "name": "recall_of_2"}},
    {"RecallAtPrecision": {"class_id": 1, "precision": 0.3, "name": "best_of_1"}},
]
_AVERAGES: list[Any] = [
    {"F1Score": {"average": average, "name": f"f1_of_{average}"}} for average in ("macro", "micro", "weighted")
]


@dataclass(frozen=True)
class MetricCase:
    """Targets and outputs of one task.

    Attributes:
      task: its name.
      options: its options.
      arrays: by name, of N examples.
      outputs: float32 (N, ...) of the model.
      target: what Keras is given as `y_true`, numbers of the rank of `prediction`.
      prediction: what Keras is given as `y_pred`.
      metrics: as the config lists them.
      weight: Keras's `sample_weight` of a metric without `weighted`; None: none.
      example_weight: name of the array with Keras's `sample_weight` of a metric with `weighted`; None: none.
      specs: of the arrays.
    """

    task: str
    options: Mapping[str, Any]
    arrays: cases.Arrays
    outputs: np.ndarray
    target: np.ndarray
    prediction: np.ndarray
    metrics: Sequence[Any]
    weight: np.ndarray | None = None
    example_weight: str | None = None
    specs: Mapping[str, ArraySpec] = field(default_factory=dict)

    def first(self, count: int, metrics: Sequence[Any]) -> MetricCase:
        """Returns the case of the first examples, with other metrics."""
        return replace(
            self,
            arrays={name: array[:count] for name, array in self.arrays.items()},
            outputs=self.outputs[:count],
            target=self.target[:count],
            prediction=self.prediction[:count],
            weight=None if self.weight is None else self.weight[:count],
            metrics=metrics,
        )

    def listed(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns the metrics with their options."""
        return [(metric, {}) if isinstance(metric, str) else next(iter(metric.items())) for metric in self.metrics]


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits.astype(np.float64))
    return (exponentials / exponentials.sum(-1, keepdims=True)).astype(np.float32)


def _label_weighted(count: int) -> list[Any]:
    """Returns areas with weights of the classes or labels."""
    weights = [0.5 * index for index in range(count)]
    # With multi_label too, Keras 3.15 can't compute it in a compiled program.
    return [{"AUC": {"label_weights": weights, "num_thresholds": 30, "name": "area_of_weighted"}}]


def _specs(arrays: cases.Arrays, names: Sequence[str] = ()) -> dict[str, ArraySpec]:
    specs = {"x": ArraySpec((1,), "float32")}
    for name, array in arrays.items():
        is_label = name == "label"
        specs[name] = ArraySpec(array.shape[1:], str(array.dtype), (), tuple(names) if is_label else ())
    return specs


def _classification() -> MetricCase:
    rng = np.random.default_rng(3)
    label = rng.integers(0, 8, 300).astype(np.int32)
    own = rng.uniform(0.1, 2.0, 300).astype(np.float32)
    logits = (rng.normal(size=(300, 8)) + np.eye(8)[label]).astype(np.float32)
    arrays = {"label": label, "own": own}
    metrics = [
        "CategoricalAccuracy",
        "SparseCategoricalAccuracy",
        {"CategoricalAccuracy": {"weighted": True, "name": "weighted_accuracy"}},
        {"TopKCategoricalAccuracy": {"k": 3}},
        {"SparseTopKCategoricalAccuracy": {"k": 2}},
        {"TopKCategoricalAccuracy": {"k": 2, "weighted": True, "name": "weighted_top_2"}},
        "CategoricalCrossentropy",
        {"AUC": {"weighted": True, "name": "weighted_auc"}},
        {"F1Score": {"threshold": 0.3}},
        {"FBetaScore": {"beta": 2.0, "average": "weighted"}},
        "MeanIoU",
        {"IoU": {"target_class_ids": [1, 3]}},
        "OneHotMeanIoU",
        {"OneHotIoU": {"target_class_ids": [0, 5]}},
        "SparseCategoricalCrossentropy",
        "CosineSimilarity",
        {"CategoricalCrossentropy": {"label_smoothing": 0.2, "name": "smoothed"}},
        {"MeanIoU": {"ignore_class": 1, "name": "iou_without_1"}},
        {"OneHotMeanIoU": {"ignore_class": 0, "weighted": True, "name": "weighted_iou_without_0"}},
        {"OneHotIoU": {"ignore_class": 4, "target_class_ids": [1, 5], "name": "one_hot_iou_without_4"}},
        {"Recall": {"top_k": 2, "weighted": True, "name": "weighted_recall_of_2"}},
        *_LARGEST,
        *_AREAS,
        *_label_weighted(8),
        *_CURVES,
        *_OF_CLASS,
        *_AVERAGES,
        *_ERRORS,
    ]
    return MetricCase(
        "classification",
        {"top_k": 3},
        arrays,
        logits,
        np.eye(8, dtype=np.float32)[label],
        _softmax(logits),
        metrics,
        example_weight="own",
        specs=_specs(arrays, "abcdefgh"),
    )


def _labels(task: str, count: int, decimals: int | None = None) -> MetricCase:
    """Returns labels of 0 and 1; with rounded logits, some are equal."""
    rng = np.random.default_rng(count)
    label = (rng.random((500, count)) < rng.uniform(0.1, 0.8, count)).astype(np.int32)
    own = rng.uniform(0.1, 2.0, 500).astype(np.float32)
    logits = (rng.normal(size=(500, count)) + 1.5 * label - 0.5).astype(np.float32)
    if decimals is not None:
        logits = logits.round(decimals)
    arrays = {"label": label, "own": own}
    metrics = [
        {"BinaryAccuracy": {"threshold": 0.6}},
        {"BinaryAccuracy": {"weighted": True, "name": "weighted_accuracy"}},
        "BinaryCrossentropy",
        {"Precision": {"weighted": True, "name": "weighted_precision"}},
        {"F1Score": {"threshold": 0.3}},
        {"F1Score": {"threshold": 0.3, "average": "weighted", "weighted": True, "name": "weighted_f1"}},
        {"FBetaScore": {"beta": 0.5, "threshold": 0.4, "average": "micro"}},
        {"BinaryIoU": {"threshold": 0.4}},
        {"BinaryIoU": {"target_class_ids": [1], "name": "iou_of_1"}},
        {"BinaryCrossentropy": {"label_smoothing": 0.1, "weighted": True, "name": "smoothed"}},
        *_AREAS,
        *(_LARGEST if count > 2 else []),
        *(_label_weighted(count) if count > 2 else []),
        *_CURVES,
        *(_OF_CLASS if count > 2 else []),
        *_ERRORS,
    ]
    return MetricCase(
        task,
        {"threshold": 0.4},
        arrays,
        logits,
        label.astype(np.float32),
        _sigmoid(logits),
        metrics,
        example_weight="own",
        specs=_specs(arrays),
    )


def _positions() -> MetricCase:
    rng = np.random.default_rng(1)
    label = rng.choice([0, 1, 2, IGNORED], (60, 3, 5)).astype(np.int32)
    known = np.where(label == IGNORED, 0, label)
    logits = (rng.normal(size=(60, 3, 5, CLASSES)) + np.eye(CLASSES)[known]).astype(np.float32)
    arrays = {"label": label}
    metrics = [
        "SparseCategoricalAccuracy",
        {"SparseTopKCategoricalAccuracy": {"k": 2}},
        "CategoricalCrossentropy",
        "MeanIoU",
        {"IoU": {"target_class_ids": [0, 2]}},
        {"IoU": {"target_class_ids": [0, 2], "ignore_class": 1, "name": "iou_without_1"}},
        {"MeanIoU": {"ignore_class": 0, "name": "mean_iou_without_0"}},
        *_LARGEST,
        *_AREAS,
        *_label_weighted(CLASSES),
        *_CURVES,
        *_OF_CLASS,
        *_AVERAGES,
        *_ERRORS,
    ]
    return MetricCase(
        "positions",
        {"classes": CLASSES, "ignore_index": IGNORED},
        arrays,
        logits,
        np.eye(CLASSES, dtype=np.float32)[known],
        _softmax(logits),
        metrics,
        weight=(label != IGNORED).astype(np.float32),
        specs=_specs(arrays),
    )


def _regression() -> MetricCase:
    rng = np.random.default_rng(4)
    target = rng.uniform(0.5, 4.0, (200, 3)).astype(np.float32)
    outputs = (target + 0.5 * np.abs(rng.normal(size=target.shape))).astype(np.float32)
    outputs[::4] = target[::4]
    own = rng.uniform(0.1, 2.0, 200).astype(np.float32)
    arrays = {"y": target, "own": own}
    metrics = [
        "Accuracy",
        *_ERRORS,
        "MeanAbsolutePercentageError",
        "MeanSquaredLogarithmicError",
        "LogCoshError",
        "CosineSimilarity",
        "Poisson",
        "KLDivergence",
        "Hinge",
        "SquaredHinge",
        "CategoricalHinge",
        {"MeanAbsoluteError": {"weighted": True, "name": "weighted_mae"}},
        {"RootMeanSquaredError": {"weighted": True, "name": "weighted_rmse"}},
    ]
    return MetricCase(
        "regression", {}, arrays, outputs, target, outputs, metrics, example_weight="own", specs=_specs(arrays)
    )


def _pixels() -> MetricCase:
    """An image of 0 and 1 per example, as a binary mask of one output channel."""
    rng = np.random.default_rng(5)
    target = (rng.random((40, 4, 3, 1)) < 0.4).astype(np.float32)
    logits = (rng.normal(size=target.shape) + 1.5 * target).astype(np.float32)
    arrays = {"y": target}
    metrics = [
        {"BinaryIoU": {"threshold": 0.4}},
        "BinaryAccuracy",
        "BinaryCrossentropy",
        {"F1Score": {"threshold": 0.4}},
        *[metric for metric in _CURVES if metric != "KLDivergence" and "AUC" not in metric],
        {"AUC": {"num_thresholds": 50}},
    ]
    options = {"loss": "binary_crossentropy", "from_logits": True}
    return MetricCase("regression", options, arrays, logits, target, _sigmoid(logits), metrics, specs=_specs(arrays))


def make() -> dict[str, MetricCase]:
    """Returns the cases by name."""
    return {
        "classification": _classification(),
        "binary": _labels("binary", 1),
        "multilabel": _labels("multilabel", 4),
        "equal outputs": _labels("multilabel", 4, decimals=0),
        "positions": _positions(),
        "regression": _regression(),
        "pixels": _pixels(),
    }
