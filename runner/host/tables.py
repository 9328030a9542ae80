"""Tables that fit a terminal: cells are wrapped, and some columns left out, which are named below the table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from runner.host.terminal import clean

# Columns of the terminal between two columns of the table.
_GAP = 2
# Where a cell may be wrapped: after a part of a path with its slash, or after a word.
_WORD = re.compile(r"[^\s/]+/*\s?|[\s/]+")
# Continuation lines of a cell are indented, so that they don't look like another row.
_INDENT = "  "


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
      title: its heading.
      right: it has numbers, which are right-aligned and never wrapped.
      drop: if there is no room, columns with larger values are dropped first; 0: never.
    """

    title: str
    right: bool = False
    drop: int = 0


def fitted(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    width: int,
    *,
    title: str = "",
    styles: Sequence[str] = (),
    has_sum: bool = False,
) -> Group:
    """Returns a table of at least one column, no wider than `width` characters if its longest words fit.

    `styles` has one style per row. With `has_sum` the last row is the sum of the others, and is set apart.
    """
    # Cleaned before the layout, which counts characters.
    texts = [[clean(cell if isinstance(cell, str) else cell.plain) for cell in row] for row in rows]
    kept = list(range(len(columns)))
    widths = _widths(columns, texts, kept, width)
    while sum(widths) > width - _GAP * (len(kept) - 1) and any(columns[index].drop for index in kept):
        most = max(columns[index].drop for index in kept)
        kept = [index for index in kept if columns[index].drop < most]
        widths = _widths(columns, texts, kept, width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for index, room in zip(kept, widths, strict=True):
        heading = Text(broken(clean(columns[index].title), room))
        table.add_column(heading, justify="right" if columns[index].right else "left", width=room, overflow="fold")
    for number, (row, shown) in enumerate(zip(rows, texts, strict=True)):
        if has_sum and number == len(rows) - 1:
            table.add_section()
        cells = []
        for index, room in zip(kept, widths, strict=True):
            cell = row[index]
            cells.append(Text(broken(shown[index], room), style="" if isinstance(cell, str) else cell.style))
        table.add_row(*cells, style=styles[number] if styles else None)
    parts: list[Text | Table] = [table]
    if title:
        parts.insert(0, Text(clean(title), style="bold"))
    dropped = [clean(column.title) for index, column in enumerate(columns) if index not in kept]
    if dropped:
        parts.append(Text(f"no room for {', '.join(dropped)}: make the terminal wider"))
    return Group(*parts)


def _widths(columns: Sequence[Column], texts: Sequence[Sequence[str]], kept: Sequence[int], width: int) -> list[int]:
    """Returns the widths of columns, the widest of which are narrowed until all fit or none can shrink."""
    widths = []
    smallest = []
    for index in kept:
        cells = [row[index] for row in texts]
        title = clean(columns[index].title)
        widths.append(max(map(len, [title, *cells])))
        words = [title] if columns[index].right else [title, *cells]
        unwrapped = cells if columns[index].right else []
        parts = [line for text in words for line in broken(text, 1).split("\n")]
        smallest.append(max(map(len, [*parts, *unwrapped])))
    while sum(widths) > width - _GAP * (len(kept) - 1):
        shrinkable = [place for place in range(len(kept)) if widths[place] > smallest[place]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=widths.__getitem__)] -= 1
    return widths


def broken(text: str, room: int) -> str:
    r"""Returns a text in lines that fit; a word that does not fit stays whole.

    >>> broken("encoder/block_0/attention", 16)
    'encoder/block_0/\n  attention'
    """
    if len(text) <= room:
        return text
    indent = _INDENT + " " * (len(text) - len(text.lstrip()))
    lines = [""]
    for word in _WORD.findall(text):
        if lines[-1].strip() and len((lines[-1] + word).rstrip()) > room:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += word
    return "\n".join(lines)


def size(count: float) -> str:
    """Returns bytes in binary units with three digits, such as `392 KiB`."""
    unit = "B"
    for larger_unit in ("KiB", "MiB", "GiB", "TiB"):
        if count < 1000:
            break
        count /= 1024
        unit = larger_unit
    decimals = 0
    if unit != "B":
        decimals = (count < 100) + (count < 10)
    return f"{count:.{decimals}f} {unit}"
