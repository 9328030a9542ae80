"""Tables of runs and of data on the terminal."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rich.text import Text

from runner.console import Column, Console, fitted
from runner.task import metrics

# The file of a table of runs.
FILE = "table.csv"
_STYLES = {"passed": "green", "FINISHED": "green", "failed": "red", "FAILED": "red", "mismatch": "red"}
# Columns that are shown however narrow the terminal is.
_ALWAYS_SHOWN = ("status", "verdict")
# Width of a pipe or a file, which have none of their own: a wide terminal's.
_DEFAULT_WIDTH = 160


def title(metric: str, shown: Sequence[str]) -> str:
    """Returns the title of a metric's column.

    Runs without metrics of the test split evaluate on the test split; runs with them evaluate on a validation split.

    >>> title("eval/loss", ["eval/loss"]), title("eval/loss", ["eval/loss", "test/loss"])
    ('test loss', 'validation loss')
    """
    split, _, name = metric.partition("/")
    if f"{split}/" == metrics.EVAL and any(other.startswith(metrics.TEST) for other in shown):
        return f"validation {name}"
    if f"{split}/" in (metrics.EVAL, metrics.TEST):
        return f"test {name}"
    if split in ("throughput", "plan"):
        return name.replace("_", " ")
    return metric


def cell(number: float) -> str:
    """Returns a number with four decimals or digits; thousands have separators.

    >>> cell(0.91234), cell(12.3456), cell(12345.6)
    ('0.9123', '12.35', '12,346')
    """
    if math.isnan(number):
        return "NaN"
    if abs(number) >= 1000 or number == 0:
        return f"{number:,.0f}"
    if abs(number) >= 10:
        return f"{number:.4g}"
    return f"{number:.4f}"


def show(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    heading: str,
    numeric: Collection[int] = (),
    best: int | None = None,
) -> None:
    """Prints a table; if the terminal is too narrow, the last metrics are dropped first, then the last keys.

    `numeric` are indices of the columns of numbers, and `best` is that of the highlighted row.
    """
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=_DEFAULT_WIDTH)
    first_number = min(numeric, default=len(titles))
    columns = []
    for index, name in enumerate(titles):
        order = index + len(titles) * (index in numeric)
        if index in (0, 1, first_number) or name in _ALWAYS_SHOWN:
            order = 0  # never dropped
        columns.append(Column(name, index in numeric, order))
    styled = []
    for row in rows:
        styled.append([Text(text, style=_STYLES.get(text, "")) for text in row])
    styles = [""] * len(rows)
    if best is not None:
        styles[best] = "bold"
    console.print(fitted(columns, styled, console.width, title=heading, styles=styles))


def write(folder: Path, columns: Mapping[str, Sequence[str]]) -> Path:
    """Writes columns of cells by title as `table.csv`; returns its path."""
    path = folder / FILE
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])
    return path
