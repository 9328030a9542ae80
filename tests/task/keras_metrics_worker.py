"""Keras's own metrics of drawn outputs: `python -m tests.task.keras_metrics_worker OUT.npz`.

With `OUT.json METRICS COUNT`, those of two cases, as two outputs of one model have them; see `of_two_outputs`.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from runner import arrays
from runner.task.keras_metrics import KINDS
from runner.task.registry import make_task
from tests.task import cases, keras_metric_cases
from tests.task.keras_metric_cases import MetricCase
from tests.task.test_metrics import evaluated

CLASSES, IGNORED = 4, 255
BATCH_SIZES = (17, 1000)
# Metrics that Keras gives class numbers.
_OF_NUMBERS = (
    "SparseCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "MeanIoU",
    "IoU",
)
# Metrics whose weights Keras multiplies with vectors, not with numbers.
_OF_VECTORS = ("F1Score", "FBetaScore", "MeanIoU", "IoU", "OneHotMeanIoU", "OneHotIoU")


def two_classes() -> tuple[np.ndarray, np.ndarray]:
    """Returns labels (N,) and logits (N, 1)."""
    rng = np.random.default_rng(0)
    labels = (rng.random(700) < 0.3).astype(np.int32)
    return labels, (rng.normal(size=(700, 1)) + 1.5 * labels[:, None]).astype(np.float32)


def several_labels() -> tuple[np.ndarray, np.ndarray]:
    """Returns labels (N, 4) and logits (N, 4); no example has the last label."""
    rng = np.random.default_rng(2)
    labels = (rng.random((500, 4)) < [0.5, 0.1, 0.8, 0.0]).astype(np.int32)
    return labels, (rng.normal(size=(500, 4)) + 1.5 * labels - 0.5).astype(np.float32)


def classes() -> tuple[np.ndarray, np.ndarray]:
    """Returns labels (N,) and logits (N, 8)."""
    rng = np.random.default_rng(3)
    return rng.integers(0, 8, 300).astype(np.int32), rng.normal(size=(300, 8)).astype(np.float32)


def grids() -> tuple[np.ndarray, np.ndarray]:
    """Returns labels (N, 3, 5), some of them ignored, and logits (N, 3, 5, C)."""
    rng = np.random.default_rng(1)
    labels = rng.choice([0, 1, 2, IGNORED], (60, 3, 5)).astype(np.int32)
    logits = rng.normal(size=(60, 3, 5, CLASSES)).astype(np.float32)
    logits[..., 3] = -9.0  # neither labeled nor predicted, so no class of the mean
    return labels, logits


def of_case(case: MetricCase) -> dict[str, np.ndarray]:
    """Returns Keras's own values of a case's metrics by name."""
    import keras

    size = case.target.shape[-1]
    target = case.target.reshape(-1, size)
    prediction = case.prediction.reshape(-1, size)
    found = {}
    for kind, content in case.listed():
        options = dict(content)
        weight = case.weight
        if options.pop("weighted", False):
            assert case.example_weight is not None
            weight = case.arrays[case.example_weight]
        name = options.pop("name", None) or KINDS[kind].name
        if "IoU" in kind and kind != "BinaryIoU":
            options["num_classes"] = size
            options["sparse_y_pred"] = False
            options["dtype"] = "float32"
        if kind in ("F1Score", "FBetaScore"):
            options.setdefault("average", "macro")
        metric = getattr(keras.metrics, kind)(**options)
        if "name" not in dict(content):
            # Keras numbers further instances of a class.
            assert metric.name.startswith(KINDS[kind].name), metric.name
        found[name] = np.asarray(_value(metric, kind, target, prediction, weight))
    return found


def _value(metric: Any, kind: str, target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> Any:
    """Returns the value of a metric of Keras over all examples at once."""
    weights = None
    if weight is not None:
        weights = weight.reshape(-1)
        is_mean = "mean" in type(metric).__mro__[1].__name__.lower() or kind == "RootMeanSquaredError"
        if not is_mean and kind not in _OF_VECTORS:
            weights = weights[:, None]
    if kind in _OF_NUMBERS:
        target = target.argmax(-1)
    metric.update_state(target, prediction, sample_weight=weights)
    return metric.result()


def of_task(case: MetricCase, batch_size: int) -> dict[str, np.ndarray]:
    """Returns the values of a case's metrics by name, as an evaluation in padded batches has them."""
    jax = importlib.import_module("jax")
    config = cases.config(case.task, example_weight=case.example_weight, metrics=list(case.metrics), **case.options)
    task = make_task(config, case.specs)
    totals = jax.jit(lambda outputs, batch: task.totals(arrays.of(jax.numpy), outputs, batch))
    found = evaluated(task, case.arrays, case.outputs, batch_size, totals).metrics
    values = {}
    for kind, content in case.listed():
        name = content.get("name", KINDS[kind].name)
        several = [found[key] for key in (f"{name}_0.3", f"{name}_0.7") if key in found]
        values[name] = np.asarray(several or found[name])
    return values


def main(out: str) -> None:
    """Writes each metric by name."""
    import keras

    labels, logits = two_classes()
    chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
    of_two = {
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.4),
        "f1": keras.metrics.F1Score(average="micro", threshold=0.4),
        "precision": keras.metrics.Precision(thresholds=0.4),
        "recall": keras.metrics.Recall(thresholds=0.4),
        "auc": keras.metrics.AUC(num_thresholds=50),
        "auc_pr": keras.metrics.AUC(num_thresholds=50, curve="PR"),
        "precision_0.8": keras.metrics.Precision(thresholds=0.8),
        "recall_0.8": keras.metrics.Recall(thresholds=0.8),
    }
    found = {}
    for name, metric in of_two.items():
        metric.update_state(labels[:, None].astype(np.float32), chances.astype(np.float32))
        found[f"binary {name}"] = np.asarray(metric.result())
    labels, logits = several_labels()
    chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
    of_labels = {
        "f1_micro": keras.metrics.F1Score(average="micro", threshold=0.4),
        "f1_macro": keras.metrics.F1Score(average="macro", threshold=0.4),
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.4),
        "precision": keras.metrics.Precision(thresholds=0.4),
        "recall": keras.metrics.Recall(thresholds=0.4),
        "precision_0.8": keras.metrics.Precision(thresholds=0.8),
        "recall_0.8": keras.metrics.Recall(thresholds=0.8),
        "auc": keras.metrics.AUC(num_thresholds=50),
        "auc_pr": keras.metrics.AUC(num_thresholds=50, curve="PR"),
        "auc_macro": keras.metrics.AUC(num_thresholds=50, multi_label=True, num_labels=4),
        "auc_pr_macro": keras.metrics.AUC(num_thresholds=50, curve="PR", multi_label=True, num_labels=4),
    }
    for name, metric in of_labels.items():
        metric.update_state(labels.astype(np.float32), chances.astype(np.float32))
        found[f"multilabel {name}"] = np.asarray(metric.result())
    labels, logits = classes()
    for name, top in {
        "accuracy": keras.metrics.SparseCategoricalAccuracy(),
        "top_3": keras.metrics.SparseTopKCategoricalAccuracy(k=3),
    }.items():
        top.update_state(labels, logits)
        found[f"classification {name}"] = np.asarray(top.result())
    labels, logits = grids()
    counted = labels != IGNORED
    iou = keras.metrics.MeanIoU(CLASSES, ignore_class=IGNORED, sparse_y_pred=False)
    iou.update_state(labels, logits)
    found["positions mean_iou"] = np.asarray(iou.result())
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(np.where(counted, labels, 0), logits, sample_weight=counted.astype(np.float32))
    found["positions accuracy"] = np.asarray(accuracy.result())
    for case_name, case in keras_metric_cases.make().items():
        found |= {f"{case_name}|{name}": value for name, value in of_case(case).items()}
        for size in BATCH_SIZES:
            found |= {f"{case_name}|{name}|{size}": value for name, value in of_task(case, size).items()}
    np.savez(out, **found)


def of_two_outputs(out: str, metrics: str, count: str) -> None:
    """Writes metrics of the cases `classification` and `positions`, by `<output>_<metric>`.

    Args:
      out: JSON file.
      metrics: JSON, the metrics of the outputs `kind` and `grid`.
      count: number of examples, the first ones.
    """
    chosen = json.loads(metrics)
    made = keras_metric_cases.make()
    found = {}
    for output, name in (("kind", "classification"), ("grid", "positions")):
        case = made[name].first(int(count), chosen[output])
        found |= {f"{output}_{metric}": float(value) for metric, value in of_case(case).items()}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        of_two_outputs(*sys.argv[1:])
