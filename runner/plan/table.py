"""The plan on a terminal."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner.plan import rows
from runner.plan.base import Plan

WIDTH = 100  # columns, where the output is no terminal
_LONGEST_PATH = 34
_WRAPS = ("rule", "variable")


def plan_console() -> Console:
    """Returns a console on stdout, of a width that the tables fit where nobody says which."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


def show(plan: Plan, console: Console) -> None:
    """Prints a plan's tables and notes."""
    console.print(Text(rows.title(plan), style="bold"))
    for table in (rows.variables(plan), rows.totals(plan), rows.traffic(plan)):
        if table.rows:
            console.print(rich_table(table))
    for line in rows.notes(plan):
        console.print(Text(line))


def rich_table(content: rows.Rows) -> Table:
    """Returns a table that fits its columns to the terminal, long paths broken at slashes."""
    table = Table(title=content.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    left = len(content.columns) - content.numbers
    for index, column in enumerate(content.columns):
        broken = column in _WRAPS
        table.add_column(
            column, justify="left" if index < left else "right", no_wrap=not broken and index > 0, overflow="fold"
        )
    for index, row in enumerate(content.rows):
        cells = [break_path(row[0], _LONGEST_PATH), *row[1:]] if content.columns[0] == "variable" else list(row)
        is_sum = content.has_sum and index == len(content.rows) - 1
        table.add_row(*(Text(cell) for cell in cells), style="bold" if is_sum else None)
        if content.has_sum and index == len(content.rows) - 2:
            table.add_section()
    return table


def break_path(path: str, longest: int) -> str:
    r"""Returns a path with a line break after the last slash that each line has room for.

    Args:
      path: canonical path.
      longest: columns of a line; a part longer than that is left whole.

    Example:
      >>> break_path("encoder/block_0/attention", 16)
      'encoder/block_0/\\n  attention'
    """
    lines = [""]
    for part in path.replace("/", "/\0").split("\0"):
        if lines[-1].strip() and len(lines[-1]) + len(part) > longest:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(lines)
