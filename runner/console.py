"""Console and tables of every command: foreign text is printed literally, and tables fit the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

import rich.console
from rich import box
from rich.console import ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from runner.host.terminal import clean

# Columns of the terminal between two columns of a table.
_GAP = 2
# Longer words, such as paths of variables, may be folded.
_LONG_WORD = 24


class Console(rich.console.Console):
    """A Rich console for foreign text: class names, run names, paths, errors of libraries.

    Rich interprets markup (`[red]`) and emoji codes (`:smile:`) in any string, and does not remove ESC.
    """

    def __init__(self, **options: Any) -> None:
        """Makes the console with Rich's options, without colors for whatever looks like a number or a path."""
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    @property
    def file(self) -> IO[str]:
        """The stream that is written to: our own one, which is below Rich's replacement while a bar is drawn."""
        stream = super().file
        return cast("IO[str]", getattr(stream, "rich_proxied_file", stream))

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def print_lines(self, lines: Iterable[str]) -> None:
        """Prints lines that a terminal may wrap, and that are whole in a pipe or a file."""
        for line in lines:
            self.print(line, soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields the segments of a renderable; control sequences in them are Rich's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


@dataclass(frozen=True)
class Column:
    """One column of a table, by its heading."""

    title: str
    # It has numbers, which are right-aligned and never folded.
    right: bool = False
    # If there is no room, columns with larger values are dropped first; 0: never.
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
    """Returns a table that fits `width` characters; columns that have no room are named below it.

    `styles` has one style per row. With `has_sum` the last row is the sum of the others, and is set apart.
    """
    widest = []
    narrowest = []
    for index, column in enumerate(columns):
        cells = [str(row[index]) for row in rows]
        widest.append(max(map(len, [column.title, *cells])))
        unfolded = " ".join([column.title, *cells]).split()
        longest = min(max(map(len, unfolded), default=0), _LONG_WORD)
        if column.right:
            longest = max(map(len, [*column.title.split(), *cells]))
        narrowest.append(longest)
    kept = list(range(len(columns)))
    while _total(narrowest, kept) > width and any(columns[index].drop for index in kept):
        kept.remove(max(kept, key=lambda index: columns[index].drop))
    widths = list(narrowest)
    # What lacks the least gets its room first, so that few columns are folded.
    for index in sorted(kept, key=lambda index: widest[index] - narrowest[index]):
        spare = max(width - _total(widths, kept), 0)
        widths[index] = min(widest[index], narrowest[index] + spare)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for index in kept:
        column = columns[index]
        heading = Text(clean(column.title))
        table.add_column(heading, justify="right" if column.right else "left", overflow="fold", width=widths[index])
    styles = styles or [""] * len(rows)
    for number, row in enumerate(rows):
        if has_sum and number == len(rows) - 1:
            table.add_section()
        cells_of_row = [row[index] for index in kept]
        table.add_row(*map(_text, cells_of_row), style=styles[number])
    parts: list[Text | Table] = [table]
    if title:
        parts.insert(0, Text(clean(title), style="bold"))
    dropped = [clean(column.title) for index, column in enumerate(columns) if index not in kept]
    if dropped:
        parts.append(Text(f"no room for {', '.join(dropped)}: make the terminal wider"))
    return Group(*parts)


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[index] + _GAP for index in kept) - _GAP


def _text(cell: str | Text) -> Text:
    """Returns a cell as a text that is cleaned before the layout counts its columns."""
    if isinstance(cell, str):
        return Text(clean(cell))
    return Text(clean(cell.plain), style=cell.style)


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
