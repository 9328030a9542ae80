"""Console of every command: prints text literally, whatever markup or control characters a name contains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any, cast

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from runner.host.terminal import clean


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

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a string as text of this console, cleaned before the layout counts its columns."""
        return super().render_str(clean(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields the segments of a renderable; control sequences in them are Rich's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)
