"""The plan on a terminal."""

from __future__ import annotations

import sys
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner.plan import rows
from runner.plan.base import Plan

WIDTH = 108  # columns, where the output is no terminal
_WRAPPED = {"variable": 24, "rule": 21}  # columns of these at that width; they alone grow with the terminal


def plan_console() -> Console:
    """Returns a console on stdout, of a width that the tables fit where nobody says which."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


def show(plan: Plan, console: Console) -> None:
    """Prints a plan's tables and notes."""
    console.print(Text(rows.title(plan), style="bold"))
    for table in (rows.variables(plan), rows.totals(plan), rows.program(plan), rows.traffic(plan)):
        if table.rows:
            console.print(rich_table(table, console.width))
    for line in rows.notes(plan):
        console.print(Text(line))


def rich_table(content: rows.Rows, width: int = WIDTH) -> Table:
    """Returns a table for a terminal of that many columns, long paths broken at slashes."""
    table = Table(title=content.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    left = len(content.columns) - content.numbers
    room = [_WRAPPED[name] + max(width - WIDTH, 0) // 2 if name in _WRAPPED else None for name in content.columns]
    for index, column in enumerate(content.columns):
        side: Literal["left", "right"] = "left" if index < left else "right"
        longest = max((len(row[index]) for row in content.rows), default=0)
        limit = room[index]
        most = None if limit is None else min(longest, limit)
        table.add_column(
            Text(column.replace(", ", ",\n")), justify=side, min_width=most, max_width=most,
            no_wrap=index > 0 and most is None, overflow="fold",
        )  # fmt: skip
    for index, row in enumerate(content.rows):
        cells = [break_path(cell, longest) if longest else cell for cell, longest in zip(row, room, strict=True)]
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
    return "\n".join(rows.broken(path, lambda line: len(line) <= longest, "  "))
