"""Report of an evaluation: its metrics and the task's tables, printed, written and logged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from runner.task.base import Cell
from runner.task.base import Table as TaskTable
from runner.train.display import shown

# Rows of a table that are printed, about a screenful; evaluate.json has all.
_MAX_ROWS = 40


@dataclass(frozen=True)
class EvaluationReport:
    """An evaluation of a split (a name or an expression) by a checkpoint: its metrics and the task's tables."""

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
        """Returns the task's tables for the terminal; of a long one the first rows."""
        tables: list[Table] = []
        for title, (columns, rows) in self.tables.items():
            table = Table(*columns, title=title if len(self.tables) > 1 else None)
            for row in rows[:_MAX_ROWS]:
                table.add_row(*map(_cell, row))
            if len(rows) > _MAX_ROWS:
                table.caption = f"the first {_MAX_ROWS} of {len(rows)}; all: evaluate.json"
            tables.append(table)
        return tables

    def write(self, folder: Path) -> Path:
        """Writes evaluate.json; returns its path."""
        tables: dict[str, list[dict[str, Cell]]] = {}
        for title, (columns, rows) in self.tables.items():
            tables[title] = [dict(zip(columns, row, strict=True)) for row in rows]
        # The metrics are at the top level too, which is where scripts look for them.
        content = {**asdict(self), **self.metrics, "metrics": dict(self.metrics), "tables": tables}
        path = folder / "evaluate.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return shown(value)
    return f"{value:,}" if isinstance(value, int) else value
