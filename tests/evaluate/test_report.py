from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from runner.engine.base import EvalMetrics
from runner.evaluate.report import by_class, make_report
from runner.evaluate.saved import split_key

CONFUSION = np.array([[3, 1, 0], [0, 0, 2], [0, 0, 0]])


def report(names: tuple[str, ...] = ("cat", "dog", "eel"), confusion: np.ndarray = CONFUSION):
    metrics = EvalMetrics(0.5, 0.5, int(confusion.sum()), confusion)
    return make_report(metrics, names, run="r", step=7, dataset="mnist", split="test", mesh="batch=2")


def test_precision_and_recall_are_shares_of_predictions_and_of_examples_and_nothing_where_there_are_none() -> None:
    cat, dog, eel = by_class(CONFUSION, ("cat", "dog", "eel"))
    assert (cat.precision, cat.recall, cat.examples, cat.predicted) == (1.0, 0.75, 4, 3)
    assert (dog.precision, dog.recall, dog.examples, dog.predicted) == (0.0, 0.0, 2, 1)
    assert (eel.precision, eel.recall, eel.examples, eel.predicted) == (0.0, None, 0, 2)


def test_the_files_hold_every_class_and_the_totals(tmp_path: Path) -> None:
    data, page = report().write(tmp_path)
    held = json.loads(data.read_text())
    assert (held["step"], held["accuracy"], held["examples"]) == (7, 0.5, 6)
    assert held["classes"][2] == {"name": "eel", "precision": 0.0, "recall": None, "examples": 0, "predicted": 2}
    assert "| cat | 1.0000 | 0.7500 | 4 | 3 |" in page.read_text()
    assert report().metrics("test")["evaluate/test/accuracy"] == 0.5


def test_of_many_classes_those_of_the_lowest_recall_are_printed() -> None:
    count = 50
    confusion = np.eye(count, dtype=np.int64) * 10
    confusion[45, 45], confusion[45, 0] = 1, 9
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(report(tuple(f"kind{index}" for index in range(count)), confusion).table())
    text = console.export_text()
    assert text.index("kind45") < text.index("kind0 ")
    assert "kind44" not in text
    assert "evaluate.json" in text


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("test", "test"),
        ("test[:1000]", "test_0-1000"),
        ("test[:10%]", "test_0-10pct"),
        ("test[10:]", "test_10-end"),
        ("train[10%:]+test[-100:]", "train_10pct-end_and_test_-100-end"),
    ],
)
def test_splits_that_differ_have_metrics_of_different_names(text: str, key: str) -> None:
    assert split_key(text) == key
