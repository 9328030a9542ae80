"""A comparison as a table: on the terminal, as CSV, as Markdown."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from runner.compare import metrics as named
from runner.compare.lines import Line, Stat
from runner.config.names import short_keys, short_value
from runner.host.console import Console
from runner.report.tables import Column, fitted

_STYLES = {"passed": "green", "FINISHED": "green", "failed": "red", "FAILED": "red"}
_ALWAYS = ("status", "verified")  # columns
_WIDTH = 160  # of a pipe or a file


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Attributes:
      titles: of the columns.
      rows: a cell a column.
      numeric: columns that are set to the right.
      best: the row that is marked; null: none.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    best: int | None = None


def sheet_of(
    lines: Sequence[Line],
    metrics: Sequence[str],
    *,
    lead: Mapping[str, Sequence[str]] | None = None,
    extra: Mapping[str, Sequence[str]] | None = None,
) -> Sheet:
    """Returns the table of a comparison.

    Args:
      lines: in order.
      metrics: columns, where any line has them.
      lead: columns before the keys, title to a cell a line.
      extra: columns after the keys, likewise.
    """
    lead = lead or {}
    extra = extra or {}
    keys = list(dict.fromkeys(key for line in lines for key in line.values))
    shown = [metric for metric in metrics if any(metric in line.metrics for line in lines)]
    folded = any(len(line.records) > 1 for line in lines)
    names = [named.title(metric, shown) for metric in shown]
    titles = [*lead, *short_keys(keys).values(), *extra, *(["runs"] if folded else []), *names]
    rows = []
    for index, line in enumerate(lines):
        cells = [column[index] for column in lead.values()]
        cells += [short_value(line.values.get(key, "")) for key in keys]
        cells += [column[index] for column in extra.values()]
        cells += [str(len(line.records))] if folded else []
        rows.append((*cells, *(show(line.metrics.get(metric)) for metric in shown)))
    first = len(lead) + len(keys) + len(extra)
    return Sheet(tuple(titles), tuple(rows), frozenset(range(first, len(titles))))


def show(found: Stat | None) -> str:
    """Returns a metric in a cell, with its deviation where several runs have it.

    >>> show(Stat(0.91234)), show(Stat(0.5, 0.01, 3)), show(None)
    ('0.9123', '0.5000 ± 0.0100', '')
    """
    if found is None:
        return ""
    return _number(found.mean) + (f" ± {_number(found.deviation)}" if found.count > 1 else "")


def _number(number: float) -> str:
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else str(number)
    if number == int(number) and (abs(number) >= 1000 or not number):
        return f"{int(number):,}"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}" if abs(number) >= 10 else f"{number:.4f}"


def console() -> Console:
    """Returns a console that a table fits on where neither a terminal nor COLUMNS says how wide it is."""
    made = Console()
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(width=_WIDTH)


def rich_table(sheet: Sheet, title: str, width: int) -> Group:
    """Returns the table for a terminal of that many columns; where they are too few, the last metrics go first."""
    columns = [
        Column(name, index in sheet.numeric, _drop(sheet, index, name)) for index, name in enumerate(sheet.titles)
    ]
    rows = [[Text(cell, style=_STYLES.get(cell.split(" ")[0], "")) for cell in row] for row in sheet.rows]
    styles = ["bold" if index == sheet.best else "" for index in range(len(rows))]
    return fitted(columns, rows, width, title=title, styles=styles)


def _drop(sheet: Sheet, index: int, name: str) -> int:
    """Returns how soon a column goes: metrics from the right, all but the first; then keys, all but the first."""
    if index in sheet.numeric:
        after = index - min(sheet.numeric)
        return len(sheet.titles) + after if after else 0
    return index if index > 1 and name not in _ALWAYS else 0


def to_csv(sheet: Sheet) -> str:
    """Returns the table as CSV, with a header."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([sheet.titles, *sheet.rows])
    return out.getvalue()


def to_markdown(sheet: Sheet) -> str:
    """Returns the table as Markdown; the best row is bold."""

    def row(cells: Sequence[str], *, bold: bool = False) -> str:
        safe = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
        return "| " + " | ".join(f"**{cell}**" if bold and cell else cell for cell in safe) + " |"

    rule = ["---:" if index in sheet.numeric else "---" for index in range(len(sheet.titles))]
    lines = [row(sheet.titles), row(rule)]
    lines += [row(cells, bold=index == sheet.best) for index, cells in enumerate(sheet.rows)]
    return "\n".join(lines) + "\n"
