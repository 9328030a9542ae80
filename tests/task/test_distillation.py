"""The loss of distillation, compared with its formula; and teachers that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import arrays
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.errors import ConfigError
from runner.task.base import Task
from runner.task.registry import make_task

OPS = arrays.of(np)
SPECS = {"x": ArraySpec((4,), "float32"), "label": ArraySpec((), "int32", names=("a", "b", "c"))}
OPTIONS = {"temperature": 2.0, "student_loss_weight": 0.25, "label_smoothing": 0.0, "class_weights": None}


def task(folder: Path, specs: Mapping[str, ArraySpec] = SPECS, **keys: Any) -> Task:
    file = folder / "big.keras"
    file.touch()
    options = {**OPTIONS, "top_k": None, "classes": None}
    return make_task(TaskConfig("distillation", teachers={"big": str(file)}, options=options, **keys), specs)


def batch(taught: np.ndarray) -> dict[str, np.ndarray]:
    count = len(taught)
    label = np.arange(count, dtype=np.int32) % 3
    return {"label": label, "big": taught, WEIGHT: np.ones(count, np.float32)}


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x)
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def test_the_loss_is_the_weighted_mean_of_cross_entropy_and_divergence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    outputs, taught = rng.normal(size=(2, 5, 3)).astype(np.float32)
    teacher, student = softmax(taught / 2), softmax(outputs / 2)
    divergence = 4 * (teacher * np.log(teacher / student)).sum(-1)
    labels = -np.log(softmax(outputs)[np.arange(5), np.arange(5) % 3])
    made = task(tmp_path)
    loss = made.loss(OPS, outputs, batch(taught))
    assert loss == pytest.approx(0.25 * labels + 0.75 * divergence, rel=1e-5)
    metrics = made.metrics(OPS, outputs, batch(taught))
    assert set(metrics) == set(made.step_metrics) == {"accuracy", "distillation_loss"}
    assert metrics["distillation_loss"] == pytest.approx(divergence, rel=1e-4)


def test_an_error_names_the_task_that_was_typed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.target=\[label,y\]: task=distillation needs one array of classes"):
        task(tmp_path, {**SPECS, "y": SPECS["label"]}, target=["label", "y"])


def test_an_evaluation_leaves_out_padding(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    outputs, taught = rng.normal(size=(2, 5, 3)).astype(np.float32)
    padded = batch(taught)
    padded[WEIGHT][3:] = 0
    outputs[3:] = np.nan
    made = task(tmp_path)
    expected = made.metrics(OPS, outputs[:3], batch(taught[:3]))["distillation_loss"].mean()
    summary = made.summary(made.totals(OPS, outputs, padded))
    assert summary["distillation_loss"] == pytest.approx(expected, rel=1e-6)


def test_a_teacher_of_other_classes_is_rejected(tmp_path: Path) -> None:
    made = task(tmp_path)
    outputs = np.zeros((5, 3), np.float32)
    with pytest.raises(
        ConfigError, match=r"task.teachers.big=.*: must return one logit per class, \[3\], but .*\[7\]"
    ):
        made.loss(OPS, outputs, batch(np.zeros((5, 7), np.float32)))
    several = batch(outputs)
    several["big_head"] = several.pop("big")
    with pytest.raises(ConfigError, match=r"big=.*: has several outputs"):
        made.loss(OPS, outputs, several)
