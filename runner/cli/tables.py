"""Tables of runs and of data: on the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from runner.console import Column, Console, fitted
from runner.task import metrics

_STYLES = {"passed": "green", "FINISHED": "green", "failed": "red", "FAILED": "red"}
# Columns that are shown however narrow the terminal is.
_ALWAYS_SHOWN = ("status", "verified")
# Width of a pipe or a file, which have none of their own: a wide terminal's.
_DEFAULT_WIDTH = 160


@dataclass(frozen=True)
class Table:
    """A table of text, with the indices of its right-aligned columns and of the highlighted row."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    best: int | None = None


def title(metric: str, shown: Sequence[str]) -> str:
    """Returns the title of a metric's column.

    Runs without metrics of the test split evaluate on the test split; runs with them evaluate on a validation split.

    >>> title("eval/loss", ["eval/loss"]), title("eval/loss", ["eval/loss", "test/loss"])
    ('test loss', 'validation loss')
    """
    split, _, name = metric.partition("/")
    if f"{split}/" == metrics.EVAL:
        has_test = any(other.startswith(metrics.TEST) for other in shown)
        return f"validation {name}" if has_test else f"test {name}"
    if f"{split}/" == metrics.TEST:
        return f"test {name}"
    if split in ("throughput", "plan"):
        return name.replace("_", " ")
    return metric


def cell(values: Sequence[float]) -> str:
    """Returns a metric of the runs of a row: the mean, with the sample standard deviation of several.

    >>> cell([0.91234]), cell([1.0, 3.0]), cell([])
    ('0.9123', '2.0000 ± 1.4142', '')
    """
    if len(values) < 2:
        return "".join(map(_number, values))
    deviation = statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
    return f"{_number(mean(values))} ± {_number(deviation)}"


def mean(values: Sequence[float]) -> float:
    """Returns the mean; NaN of no values. It may be infinite."""
    return sum(values) / len(values) if values else math.nan


def _number(number: float) -> str:
    """Returns a number with four decimals or digits; thousands have separators."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return str(number)
    is_large = abs(number) >= 1000
    if is_large or number == 0:
        return f"{number:,.0f}"
    if abs(number) >= 10:
        return f"{number:.4g}"
    return f"{number:.4f}"


def show(table: Table, heading: str) -> None:
    """Prints a table; if the terminal is too narrow, the last metrics are dropped first, then the last keys."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=_DEFAULT_WIDTH)
    first_number = min(table.numeric, default=len(table.titles))
    columns = []
    for index, name in enumerate(table.titles):
        order = index + len(table.titles) * (index in table.numeric)
        if index in (0, 1, first_number) or name in _ALWAYS_SHOWN:
            order = 0  # never dropped
        columns.append(Column(name, index in table.numeric, order))
    rows = []
    for row in table.rows:
        # The status of several runs is followed by their number, as in `FINISHED 2`.
        rows.append([Text(text, style=_STYLES.get(text.split(" ")[0], "")) for text in row])
    styles = ["bold" if index == table.best else "" for index in range(len(rows))]
    console.print(fitted(columns, rows, console.width, title=heading, styles=styles))


def to_csv(table: Table) -> str:
    """Returns the table as CSV, with a header."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([table.titles, *table.rows])
    return out.getvalue()
