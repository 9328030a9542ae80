"""Report of an evaluation: its metrics and the task's tables, printed, written and logged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from runner.task.base import Cell
from runner.task.base import Table as TaskTable
from runner.train.display import shown

# Rows of a table that are printed, about a screenful; evaluate.json has all.
_MAX_ROWS = 40

Row = Sequence[Cell]


@dataclass(frozen=True)
class EvaluationReport:
    """An evaluation of a checkpoint.

    Attributes:
      run: the run's id.
      step: the step of the checkpoint.
      dataset: its name.
      split: that was evaluated, a name or an expression.
      mesh: axes and sizes, in words.
      metrics: the metrics of the evaluation by name.
      examples: how many were evaluated.
      tables: the task's, by title.
    """

    run: str
    step: int
    dataset: str
    split: str
    mesh: str
    metrics: Mapping[str, float]
    examples: int
    tables: Mapping[str, TaskTable]

    def logged(self, place: str) -> dict[str, float]:
        """Returns the metrics and the number of examples, named `evaluate/<place>/...`."""
        totals = {**self.metrics, "examples": float(self.examples)}
        return {f"evaluate/{place}/{name}": value for name, value in totals.items()}

    def totals(self) -> list[tuple[str, str]]:
        """Returns the rows of the table of totals."""
        rows = [
            ("run", self.run),
            ("checkpoint of step", f"{self.step:,}"),
            ("split", f"{self.split} of {self.dataset}"),
            ("mesh", self.mesh),
            ("examples", f"{self.examples:,}"),
        ]
        rows += [(name, shown(value)) for name, value in self.metrics.items()]
        return rows

    def printed(self) -> list[Table]:
        """Returns the task's tables for the terminal; of a long one the rows with the lowest fractions."""
        has_titles = len(self.tables) > 1
        tables: list[Table] = []
        for title, (columns, rows) in self.tables.items():
            tables.append(_printed(title if has_titles else None, columns, rows))
        return tables

    def write(self, folder: Path) -> Path:
        """Writes evaluate.json; returns its path."""
        path = folder / "evaluate.json"
        path.write_text(json.dumps(self._content(), indent=1) + "\n")
        return path

    def _content(self) -> dict[str, object]:
        tables: dict[str, list[dict[str, Cell]]] = {}
        for title, (columns, rows) in self.tables.items():
            tables[title] = [dict(zip(columns, row, strict=True)) for row in rows]
        # The metrics are at the top level too, which is where scripts look for them.
        return {**asdict(self), **self.metrics, "metrics": dict(self.metrics), "tables": tables}


def _printed(title: str | None, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    count = len(rows)
    notes = [title] if title else []
    if count > _MAX_ROWS:
        column = _sorting_column(columns, rows)
        if column is None:
            notes.append(f"the first {_MAX_ROWS} of {count}; all: evaluate.json")
        else:
            rows = sorted(rows, key=lambda row: _fraction(row[column]))
            notes.append(f"lowest {columns[column]}, {_MAX_ROWS} of {count}; all: evaluate.json")
        rows = rows[:_MAX_ROWS]
    table = Table(title=", ".join(notes) or None)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if _is_number(rows, number) else "left")
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _sorting_column(columns: Sequence[str], rows: Sequence[Row]) -> int | None:
    """Returns the last column of fractions, such as recall; None if there is none."""
    for column in reversed(range(len(columns))):
        if all(row[column] is None or isinstance(row[column], float) for row in rows):
            return column
    return None


def _fraction(value: Cell) -> float:
    """Returns a cell of a sorting column; a class without examples has no value, and comes last."""
    return value if isinstance(value, float) else 1.0


def _is_number(rows: Sequence[Row], column: int) -> bool:
    return not any(isinstance(row[column], str) for row in rows)


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return shown(value)
    return f"{value:,}" if isinstance(value, int) else value
