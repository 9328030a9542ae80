"""Tables that fit a terminal: cells are wrapped, and some columns left out.

The columns without room are named below the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from runner.host.terminal import clean

# A number up to so many characters is never wrapped: that of a mean with its deviation, `0.9712 ± 0.0031`.
_MAX_NUMBER = 16
# Columns of the terminal between two columns of the table.
_GAP = 2
# Where a cell may be wrapped: after a part of a path with its slash, or after a word.
_WORD = re.compile(r"[^\s/]+/*\s?|[\s/]+")
# Headings may be wrapped at underscores too.
_HEADING_WORD = re.compile(r"[^\s/_]+[/_]*\s?|[\s/_]+")
# Continuation lines of a cell are indented, so that they don't look like another row.
_INDENT = "  "


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
      title: its heading.
      right: it has numbers, which are right-aligned.
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
    """Returns a table no wider than the terminal, if its longest words fit.

    First the headings are wrapped, then the cells; then columns are dropped, which a line below the table names.

    Args:
      columns: at least one.
      rows: rows of one cell per column.
      width: the width of the terminal, in characters.
      title: above the table.
      styles: one per row; none: all are plain.
      has_sum: the last row is the sum of the others, and is set apart.
    """
    # Cleaned before the layout, which counts characters.
    columns = [replace(column, title=clean(column.title)) for column in columns]
    rows = [list(map(_cleaned, row)) for row in rows]
    kept, widths = _fit(columns, rows, width)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    for column, column_width in zip(kept, widths, strict=True):
        justify: JustifyMethod = "left"
        if column.right:
            justify = "right"
        table.add_column(
            Text(broken(column.title, column_width, _HEADING_WORD)),
            justify=justify,
            width=column_width,
            overflow="fold",
            no_wrap=False,
        )
    indices = [columns.index(column) for column in kept]
    for number, row in enumerate(rows):
        if has_sum and number == len(rows) - 1:
            table.add_section()
        cells = []
        for index, column_width in zip(indices, widths, strict=True):
            cells.append(_wrapped(row[index], column_width))
        style = None
        if styles:
            style = styles[number]
        table.add_row(*cells, style=style)
    parts: list[Text | Table] = [table]
    if title:
        parts.insert(0, Text(clean(title), style="bold"))
    dropped = [column.title for column in columns if column not in kept]
    if dropped:
        parts.append(Text(f"no room for {', '.join(dropped)}: make the terminal wider"))
    return Group(*parts)


def broken(text: str, room: int, words: re.Pattern[str] = _WORD) -> str:
    r"""Returns a text in lines that fit; a word that does not fit stays whole.

    >>> broken("encoder/block_0/attention", 16)
    'encoder/block_0/\n  attention'
    """
    lines = [""]
    indent = ""
    if words is not _HEADING_WORD:
        own_indent = len(text) - len(text.lstrip())
        indent = _INDENT + " " * own_indent
    for word in words.findall(text):
        is_full = lines[-1].strip() and len((lines[-1] + word).rstrip()) > room
        if is_full:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += word
    return "\n".join(lines)


def _cleaned(cell: str | Text) -> str | Text:
    """Returns a cell without characters that control the terminal."""
    if isinstance(cell, str):
        return clean(cell)
    cleaned = clean(cell.plain)
    if cleaned == cell.plain:
        return cell
    return Text(cleaned, style=cell.style)


def _wrapped(cell: str | Text, width: int) -> Text:
    text = cell
    if isinstance(text, str):
        text = Text(text)
    if len(text.plain) <= width:
        return text
    return Text(broken(text.plain, width), style=text.style)


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int
) -> tuple[list[Column], list[int]]:
    """Returns the columns that are shown, and their widths."""
    kept = list(columns)
    while True:
        widths = []
        # Smallest widths if only the headings are wrapped, and if the cells are wrapped too.
        heading_widths = []
        word_widths = []
        for column in kept:
            index = columns.index(column)
            cells = [str(row[index]) for row in rows]
            cell_width = max(map(len, cells), default=0)
            heading_width = _longest([column.title], _HEADING_WORD)
            widths.append(max(cell_width, len(column.title)))
            heading_widths.append(max(cell_width, heading_width))
            if column.right and heading_widths[-1] <= _MAX_NUMBER:
                word_widths.append(heading_widths[-1])
            else:
                word_widths.append(max(_longest(cells, _WORD), heading_width))
        room = width - _GAP * (len(kept) - 1)
        _narrow(widths, heading_widths, room)
        _narrow(widths, word_widths, room)
        largest_drop = max(column.drop for column in kept)
        if sum(widths) <= room or not largest_drop:
            return kept, widths
        kept = [column for column in kept if column.drop < largest_drop]


def _narrow(widths: list[int], smallest: Sequence[int], room: int) -> None:
    """Narrows the widest column by one character until all fit or none can shrink."""
    while sum(widths) > room:
        candidates = [index for index in range(len(widths)) if widths[index] > smallest[index]]
        if not candidates:
            return
        widest = max(candidates, key=lambda index: widths[index])
        widths[widest] -= 1


def _longest(texts: Sequence[str], words: re.Pattern[str]) -> int:
    """Returns the length of the longest word, with the indent of a later word."""
    longest = 0
    for text in texts:
        indent = 0
        if words is not _HEADING_WORD:
            indent = len(_INDENT) + len(text) - len(text.lstrip())
        for index, word in enumerate(words.findall(text)):
            length = len(word.rstrip())
            if index > 0:
                length += indent
            longest = max(longest, length)
    return longest


def size(count: int) -> str:
    """Returns bytes in binary units with three digits, such as `392 KiB`."""
    value = float(count)
    unit = "B"
    for larger_unit in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value = value / 1024
        unit = larger_unit
    if unit == "B" or value >= 100:
        return f"{value:.0f} {unit}"
    if value >= 10:
        return f"{value:.1f} {unit}"
    return f"{value:.2f} {unit}"
