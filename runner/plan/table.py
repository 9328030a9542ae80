"""The plan on a terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

from rich.console import Group
from rich.text import Text

from runner.console import Column, Console, fitted
from runner.plan import rows
from runner.plan.base import Plan

# Columns if the output is not a terminal: the widest table of the presets fits.
WIDTH = 108
# Columns of plan.md and advise.md, which a reader may scroll.
_PAGE_WIDTH = 200
# A narrow terminal drops these columns first.
_DROP: Mapping[str, int] = MappingProxyType({"rule": 1})


def plan_console() -> Console:
    """Returns a console on stdout, `WIDTH` wide if stdout is not a terminal and COLUMNS is not set."""
    knows_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if knows_width else WIDTH)


def as_markdown(title: str, print_to: Callable[[Console], None]) -> str:
    """Returns what a function prints to a terminal as a page, whose tables drop no column."""
    console = Console(width=_PAGE_WIDTH, file=io.StringIO())
    print_to(console)
    text = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]
    return f"# {title}\n\n```text\n{text}\n```\n"


def show(plan: Plan, console: Console, *, join: bool = True) -> None:
    """Prints a plan's tables and notes; see `rows.variables` for `join`."""
    console.print(Text(rows.title(plan), style="bold"))
    console.print()
    verdict = rows.verdict(plan)
    for line in verdict:
        console.print(Text(line))
    if verdict:
        console.print()
    for table in (rows.memory(plan), rows.variables(plan, join=join), rows.program(plan), rows.traffic(plan)):
        if table.rows:
            console.print(rich_table(table, console.width))
            console.print()
    for line in rows.notes(plan):
        console.print(Text(line))


def rich_table(content: rows.Rows, width: int = WIDTH, drop: Mapping[str, int] = _DROP) -> Group:
    """Returns a table for a terminal of `width` columns."""
    text_columns = len(content.columns) - content.numbers
    columns = []
    for index, name in enumerate(content.columns):
        columns.append(Column(name, index >= text_columns, drop.get(name, 0)))
    return fitted(columns, content.rows, width, title=content.title, has_sum=content.has_sum)
