"""What an evaluation says: its metrics, and the tables that the task makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from runner.task.base import Cell
from runner.task.base import Table as TaskTable
from runner.training.display import shown

_MOST_ROWS = 40  # of a table that are printed


@dataclass(frozen=True)
class EvaluationReport:
    """An evaluation of a checkpoint.

    Attributes:
      run: the run's id.
      step: of the checkpoint.
      dataset: its name.
      split: what was evaluated, a word or an expression.
      mesh: axes and sizes, in words.
      metrics: of the evaluation by name.
      examples: how many were counted.
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
        return [
            ("run", self.run),
            ("checkpoint of step", f"{self.step:,}"),
            ("split", f"{self.split} of {self.dataset}"),
            ("mesh", self.mesh),
            ("examples", f"{self.examples:,}"),
            *((name, shown(value)) for name, value in self.metrics.items()),
        ]

    def printed(self) -> list[Table]:
        """Returns the task's tables; of a long one the rows with the lowest share, which are looked for."""
        titled = len(self.tables) > 1
        return [_printed(title if titled else None, *table) for title, table in self.tables.items()]

    def write(self, folder: Path) -> list[Path]:
        """Writes evaluate.json and evaluate.md; returns their paths."""
        data = folder / "evaluate.json"
        page = folder / "evaluate.md"
        data.write_text(json.dumps(self._content(), indent=1) + "\n")
        lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in self.totals()), ""]
        for title, (columns, rows) in self.tables.items():
            sides = ["---:" if _is_number(rows, column) else "---" for column in range(len(columns))]
            lines += [
                f"## {title}",
                "",
                _row(columns),
                f"|{'|'.join(sides)}|",
                *(_row(map(_cell, row)) for row in rows),
            ]
            lines.append("")
        page.write_text("\n".join(lines).rstrip() + "\n")
        return [data, page]

    def _content(self) -> dict[str, object]:
        tables = {
            title: [dict(zip(columns, row, strict=True)) for row in rows]
            for title, (columns, rows) in self.tables.items()
        }
        return {**asdict(self), **self.metrics, "metrics": dict(self.metrics), "tables": tables}


def _printed(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    count = len(rows)
    note = None
    if count > _MOST_ROWS:
        share = _sorting_column(columns, rows)
        if share is not None:
            rows = sorted(rows, key=lambda row: 1.0 if row[share] is None else float(row[share]))  # type: ignore[arg-type]
            note = f"lowest {columns[share]}, {_MOST_ROWS} of {count}; all: evaluate.json"
        else:
            note = f"the first {_MOST_ROWS} of {count}; all: evaluate.json"
        rows = rows[:_MOST_ROWS]
    table = Table(title=", ".join(filter(None, (title, note))) or None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if _is_number(rows, number) else "left")
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _sorting_column(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> int | None:
    """Returns the last column of shares, as recall; None where there is none."""
    shares = [
        number
        for number in range(len(columns))
        if all(row[number] is None or isinstance(row[number], float) for row in rows)
    ]
    return shares[-1] if shares else None


def _is_number(rows: Sequence[Sequence[Cell]], column: int) -> bool:
    return not any(isinstance(row[column], str) for row in rows)


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return shown(value)
    return f"{value:,}" if isinstance(value, int) else value


def _row(cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"  # type: ignore[attr-defined]
