"""Tables that fit a terminal: headings and paths are broken between words; what has no room then is named below."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from runner.host.terminal import clean

_NUMBER = 16  # characters up to which a number with what belongs to it is never broken, as `0.9712 ± 0.0031`
_GAP = 2  # columns of the terminal between two of the table
_WORD = re.compile(r"[^\s/]+/*\s?|[\s/]+")  # of a cell: a path's part with its slash, or a word
_HEADING = re.compile(r"[^\s/_]+[/_]*\s?|[\s/_]+")


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
      title: its heading.
      right: it holds numbers.
      drop: where a table has no room, columns with larger numbers go first; 0: it stays.
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
    """Returns a table that is no wider than the terminal, wherever its longest words fit.

    Headings are broken first, then the words of the cells, then columns are left out, which a line below names.

    Args:
      columns: at least one.
      rows: a cell a column.
      width: of the terminal, in characters.
      title: above the table.
      styles: of the rows; none: all are plain.
      has_sum: the last row adds up the others, and is set apart.
    """
    # Ahead of the layout, which counts columns.
    columns = [replace(column, title=clean(column.title)) for column in columns]
    rows = [[_cleaned(cell) for cell in row] for row in rows]
    kept, widths = _fit(columns, rows, width)
    gone = [column.title for column in columns if column not in kept]
    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    for column, room in zip(kept, widths, strict=True):
        heading = broken(column.title, room, _HEADING)
        made.add_column(
            Text(heading), justify="right" if column.right else "left", width=room, overflow="fold", no_wrap=False
        )
    places = [columns.index(column) for column in kept]
    for index, row in enumerate(rows):
        if has_sum and index == len(rows) - 1:
            made.add_section()
        cells = [_cell(row[place], room) for place, room in zip(places, widths, strict=True)]
        made.add_row(*cells, style=styles[index] if styles else None)
    left_out = f"no room for {', '.join(gone)}: make the terminal wider"
    return Group(*([Text(clean(title), style="bold")] if title else []), made, *([Text(left_out)] if gone else []))


def broken(text: str, room: int, words: re.Pattern[str] = _WORD) -> str:
    r"""Returns a text in lines that fit; a word that does not fit is left whole.

    >>> broken("encoder/block_0/attention", 16)
    'encoder/block_0/\n  attention'
    """
    lines = [""]
    indent = "" if words is _HEADING else "  " + " " * (len(text) - len(text.lstrip()))
    for word in words.findall(text):
        if lines[-1].strip() and len((lines[-1] + word).rstrip()) > room:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += word
    return "\n".join(lines)


def _cleaned(cell: str | Text) -> str | Text:
    if isinstance(cell, Text):
        cleaned = clean(cell.plain)
        return cell if cleaned == cell.plain else Text(cleaned, style=cell.style)
    return clean(cell)


def _cell(cell: str | Text, room: int) -> Text:
    text = cell if isinstance(cell, Text) else Text(cell)
    return Text(broken(text.plain, room), style=text.style) if len(text.plain) > room else text


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int
) -> tuple[list[Column], list[int]]:
    """Returns the columns that are shown, and their widths."""
    kept = list(columns)
    while True:
        places = [columns.index(column) for column in kept]
        cells = [[str(row[place]) for row in rows] for place in places]
        widest = [max(map(len, column), default=0) for column in cells]
        room = width - _GAP * (len(kept) - 1)
        widths = [max(wide, len(column.title)) for wide, column in zip(widest, kept, strict=True)]
        headings = [max(wide, _longest([one.title], _HEADING)) for wide, one in zip(widest, kept, strict=True)]
        words = [
            wide
            if column.right and wide <= _NUMBER
            else max(_longest(texts, _WORD), _longest([column.title], _HEADING))
            for wide, column, texts in zip(headings, kept, cells, strict=True)
        ]
        for least in (headings, words):
            _narrow(widths, least, room)
        most = max(column.drop for column in kept)
        if sum(widths) <= room or not most:
            return kept, widths
        kept = [column for column in kept if column.drop < most]


def _narrow(widths: list[int], least: Sequence[int], room: int) -> None:
    """Takes from the widest column, again and again, until all fit or none can give."""
    while sum(widths) > room and any(one > low for one, low in zip(widths, least, strict=True)):
        widths[max(range(len(widths)), key=lambda at: (widths[at] > least[at]) * widths[at])] -= 1


def _longest(texts: Sequence[str], words: re.Pattern[str]) -> int:
    """Returns the length of the longest word, with the indent that it has where it is not the first."""
    indent = 0 if words is _HEADING else 2
    return max(
        (
            len(word.rstrip()) + (indent + len(text) - len(text.lstrip()) if index else 0)
            for text in texts
            for index, word in enumerate(words.findall(text))
        ),
        default=0,
    )


def size(count: int) -> str:
    """Returns bytes in binary units, three digits: `392 KiB`."""
    value = float(count)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value = value / 1024
        unit = larger
    digits = 0 if unit == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"
