"""The plan on a terminal."""

from __future__ import annotations

import os
import sys

from rich.console import Group
from rich.text import Text

from runner.host.console import Console
from runner.plan import rows
from runner.plan.base import Plan
from runner.report.tables import Column, fitted

WIDTH = 108  # columns, where nobody says how many there are
_DROP = {"rule": 1}  # what a narrow terminal has no room for


def plan_console() -> Console:
    """Returns a console on stdout; where that is no terminal and COLUMNS is not set, of a width that tables fit."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)


def show(plan: Plan, console: Console) -> None:
    """Prints a plan's tables and notes."""
    console.print(Text(rows.title(plan), style="bold"))
    console.print()
    for table in (rows.variables(plan, fold=True), rows.totals(plan), rows.program(plan), rows.traffic(plan)):
        if table.rows:
            console.print(rich_table(table, console.width))
            console.print()
    for line in rows.notes(plan):
        console.print(Text(line))


def rich_table(content: rows.Rows, width: int = WIDTH) -> Group:
    """Returns a table for a terminal of that many columns."""
    left = len(content.columns) - content.numbers
    columns = [Column(name, index >= left, _DROP.get(name, 0)) for index, name in enumerate(content.columns)]
    return fitted(columns, content.rows, width, title=content.title, has_sum=content.has_sum)
