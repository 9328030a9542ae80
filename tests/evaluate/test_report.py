from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from runner.task.base import Cell
from runner.verify.evaluate import EvaluationReport

COLUMNS = ("class", "precision", "recall", "examples")
ROWS: list[tuple[Cell, ...]] = [("cat", 1.0, 0.75, 4), ("dog", 0.0, 0.0, 2), ("e|l", 0.0, None, 0)]


def report(rows: list[tuple[Cell, ...]] = ROWS) -> EvaluationReport:
    metrics = {"loss": 0.5, "accuracy": 0.5}
    return EvaluationReport("r", 7, "mnist", "test", "batch=2", metrics, 6, {"classes": (COLUMNS, rows)})


def test_the_file_has_the_metrics_and_every_row_of_the_tables(tmp_path: Path) -> None:
    held = json.loads(report().write(tmp_path).read_text())
    assert (held["step"], held["accuracy"], held["examples"]) == (7, 0.5, 6)
    assert held["tables"]["classes"][2] == {"class": "e|l", "precision": 0.0, "recall": None, "examples": 0}
    assert report().logged("test") == {
        "evaluate/test/loss": 0.5,
        "evaluate/test/accuracy": 0.5,
        "evaluate/test/examples": 6.0,
    }


def test_of_many_rows_the_first_are_printed() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(*report([(f"kind{index}", 1.0, 1.0, 10) for index in range(50)]).printed())
    said = " ".join(console.export_text().split())
    assert "kind39" in said
    assert "kind40" not in said
    assert "the first 40 of 50; all: evaluate.json" in said
