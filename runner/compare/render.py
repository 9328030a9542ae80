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

from runner.compare import metrics as metric_names
from runner.compare.lines import Line, Stat, keys_of
from runner.config.names import short_keys, short_value
from runner.host.console import Console
from runner.host.tables import Column, fitted

_STYLES = {"passed": "green", "FINISHED": "green", "failed": "red", "FAILED": "red"}
# Columns that are shown however narrow the terminal is.
_ALWAYS_SHOWN = ("status", "verified")
# Width of a pipe or a file, which have none of their own: a wide terminal's.
_DEFAULT_WIDTH = 160


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Attributes:
      titles: titles of the columns.
      rows: rows of one cell per column.
      numeric: indices of right-aligned columns.
      best: index of the highlighted row; null: none.
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
      lines: the rows, in order.
      metrics: metrics that are columns if any line has them.
      lead: columns before the keys, title to one cell per line.
      extra: columns after the keys, in the same form.
    """
    lead = lead or {}
    extra = extra or {}
    keys = keys_of(lines)
    recorded: set[str] = set()
    for line in lines:
        recorded.update(line.metrics)
    shown = [metric for metric in metrics if metric in recorded]
    is_folded = any(len(line.records) > 1 for line in lines)
    titles = [*lead, *short_keys(keys).values(), *extra]
    first_number = len(lead) + len(keys) + len(extra)
    if is_folded:
        titles.append("runs")
    titles += [metric_names.title(metric, shown) for metric in shown]
    rows = []
    for index, line in enumerate(lines):
        cells = [column[index] for column in lead.values()]
        cells += [short_value(line.values.get(key, "")) for key in keys]
        cells += [column[index] for column in extra.values()]
        if is_folded:
            cells.append(str(len(line.records)))
        cells += [show(line.metrics.get(metric)) for metric in shown]
        rows.append(tuple(cells))
    return Sheet(tuple(titles), tuple(rows), frozenset(range(first_number, len(titles))))


def show(stat: Stat | None) -> str:
    """Returns a metric as a cell shows it, with the deviation of several runs.

    >>> show(Stat(0.91234)), show(Stat(0.5, 0.01, 3)), show(None)
    ('0.9123', '0.5000 ± 0.0100', '')
    """
    if stat is None:
        return ""
    mean = _number(stat.mean)
    if stat.count > 1:
        return f"{mean} ± {_number(stat.deviation)}"
    return mean


def _number(number: float) -> str:
    """Returns a number as a cell shows it.

    It has four decimals or digits, and thousands have separators.
    """
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return str(number)
    is_large = abs(number) >= 1000
    if number == int(number) and (is_large or number == 0):
        return f"{int(number):,}"
    if is_large:
        return f"{number:,.0f}"
    if abs(number) >= 10:
        return f"{number:.4g}"
    return f"{number:.4f}"


def console() -> Console:
    """Returns a console that is wide enough for a table.

    It has that width if neither a terminal nor COLUMNS determines one.
    """
    default = Console()
    if default.is_terminal or "COLUMNS" in os.environ:
        return default
    return Console(width=_DEFAULT_WIDTH)


def rich_table(sheet: Sheet, title: str, width: int) -> Group:
    """Returns the table for a terminal of that width.

    If it is too narrow, the last metrics are dropped first.
    """
    columns = []
    for index, name in enumerate(sheet.titles):
        columns.append(Column(name, index in sheet.numeric, _drop_order(sheet, index, name)))
    rows = []
    for row in sheet.rows:
        # The status of a folded line is followed by a count, as in `FINISHED 2`.
        rows.append([Text(cell, style=_STYLES.get(cell.split(" ")[0], "")) for cell in row])
    styles = [""] * len(rows)
    if sheet.best is not None:
        styles[sheet.best] = "bold"
    return fitted(columns, rows, width, title=title, styles=styles)


def _drop_order(sheet: Sheet, index: int, name: str) -> int:
    """Returns how soon a column is dropped; 0: never.

    Metrics are dropped from the right, then keys, never the first of each.
    """
    if index in sheet.numeric:
        position = index - min(sheet.numeric)
        is_first = position == 0
        order = len(sheet.titles) + position
    else:
        is_first = index <= 1
        order = index
    if is_first or name in _ALWAYS_SHOWN:
        return 0
    return order


def to_csv(sheet: Sheet) -> str:
    """Returns the table as CSV, with a header."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([sheet.titles, *sheet.rows])
    return out.getvalue()


def to_markdown(sheet: Sheet) -> str:
    """Returns the table as Markdown; the best row is bold."""
    rule = ["---"] * len(sheet.titles)
    for index in sheet.numeric:
        rule[index] = "---:"
    lines = [_markdown_row(sheet.titles), _markdown_row(rule)]
    for index, cells in enumerate(sheet.rows):
        lines.append(_markdown_row(cells, is_bold=index == sheet.best))
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str], *, is_bold: bool = False) -> str:
    texts = []
    for cell in cells:
        text = cell.replace("|", "\\|").replace("\n", " ")
        if is_bold and text:
            text = f"**{text}**"
        texts.append(text)
    return f"| {' | '.join(texts)} |"
