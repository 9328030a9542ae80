"""What an evaluation says: totals, and precision and recall by class."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from runner.engine.base import Array, EvalMetrics

_MOST_ROWS = 40  # classes that are printed


@dataclass(frozen=True)
class ClassResult:
    """One class of an evaluation.

    Attributes:
      name: the class's.
      precision: share of the examples predicted as this class that are; None where none was.
      recall: share of the class's examples that were predicted as it; None where there is none.
      examples: of this class.
      predicted: examples that were predicted as it.
    """

    name: str
    precision: float | None
    recall: float | None
    examples: int
    predicted: int


@dataclass(frozen=True)
class Report:
    """An evaluation of a checkpoint.

    Attributes:
      run: the run's id.
      step: of the checkpoint.
      dataset: its name.
      split: expression of what was evaluated.
      mesh: axes and sizes, in words.
      loss: mean cross-entropy in nats.
      accuracy: share of examples that were got right.
      examples: how many were counted.
      classes: in label order.
    """

    run: str
    step: int
    dataset: str
    split: str
    mesh: str
    loss: float
    accuracy: float
    examples: int
    classes: tuple[ClassResult, ...]

    def metrics(self, place: str) -> dict[str, float]:
        """Returns the totals, named `evaluate/<place>/...`."""
        totals = {"loss": self.loss, "accuracy": self.accuracy, "examples": float(self.examples)}
        return {f"evaluate/{place}/{name}": value for name, value in totals.items()}

    def totals(self) -> list[tuple[str, str]]:
        """Returns the rows of the table of totals."""
        return [
            ("run", self.run),
            ("checkpoint of step", f"{self.step:,}"),
            ("split", f"{self.split} of {self.dataset}"),
            ("mesh", self.mesh),
            ("examples", f"{self.examples:,}"),
            ("loss", f"{self.loss:.4f}"),
            ("accuracy", f"{self.accuracy:.4f}"),
        ]

    def table(self) -> Table:
        """Returns the classes, those of the lowest recall where there are many."""
        rows = list(self.classes)
        title = None
        if len(rows) > _MOST_ROWS:
            rows = sorted(rows, key=lambda one: 1.0 if one.recall is None else one.recall)[:_MOST_ROWS]
            title = f"lowest recall, {_MOST_ROWS} of {len(self.classes)}; all: evaluate.json"
        table = Table(title=title)
        table.add_column("class")
        for name in ("precision", "recall", "examples", "predicted"):
            table.add_column(name, justify="right")
        for one in rows:
            table.add_row(one.name, *_shown(one))
        return table

    def write(self, folder: Path) -> list[Path]:
        """Writes evaluate.json and evaluate.md; returns their paths."""
        data, page = folder / "evaluate.json", folder / "evaluate.md"
        data.write_text(json.dumps(asdict(self), indent=1) + "\n")
        lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in self.totals()), ""]
        lines += ["| class | precision | recall | examples | predicted |", "|---|---:|---:|---:|---:|"]
        lines += [f"| {' | '.join((one.name.replace('|', '/'), *_shown(one)))} |" for one in self.classes]
        page.write_text("\n".join(lines) + "\n")
        return [data, page]


def _shown(one: ClassResult) -> tuple[str, ...]:
    shares = ("-" if share is None else f"{share:.4f}" for share in (one.precision, one.recall))
    return (*shares, f"{one.examples:,}", f"{one.predicted:,}")


def by_class(confusion: Array, class_names: Sequence[str]) -> tuple[ClassResult, ...]:
    """Returns precision and recall of each class.

    Args:
      confusion: int (C, C), rows are labels, columns predictions.
      class_names: in label order.
    """
    right, examples, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)

    def share(part: Any, whole: Any) -> float | None:
        return float(part / whole) if whole else None

    return tuple(
        ClassResult(name, share(right[i], predicted[i]), share(right[i], examples[i]), int(examples[i]), int(total))
        for i, (name, total) in enumerate(zip(class_names, predicted, strict=True))
    )


def make_report(
    metrics: EvalMetrics, class_names: Sequence[str], *, run: str, step: int, dataset: str, split: str, mesh: str
) -> Report:
    """Returns the report of an evaluation; see `Report` for the arguments."""
    classes = by_class(metrics.confusion, class_names)
    return Report(run, step, dataset, split, mesh, metrics.loss, metrics.accuracy, metrics.examples, classes)
