"""Keras's own metrics of drawn outputs: `python -m tests.task.keras_metrics_worker OUT.npz`."""

from __future__ import annotations

import sys

import numpy as np

CLASSES, IGNORED = 4, 255


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
    np.savez(out, **found)


if __name__ == "__main__":
    main(sys.argv[1])
