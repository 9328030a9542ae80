"""The console of every command: text is printed as it is, whatever markup or control characters a name has in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any, cast

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.file_proxy import FileProxy
from rich.segment import Segment
from rich.text import Text

from runner.host.terminal import clean


class _CleanedProxy:
    """What Rich puts in a stream's place while it draws, without its reading of control sequences as styles."""

    def __init__(self, proxy: FileProxy) -> None:
        self._proxy = proxy

    def write(self, text: str) -> int:
        """Writes as the stream does, without what controls a terminal."""
        return self._proxy.write(clean(text))

    def write_styled(self, text: str) -> int:
        """Writes as the stream does."""
        return self._proxy.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)


def clean_redirected() -> None:
    """Cleans what is printed while Rich draws; called when a live display or a bar has started, which ends it too."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, FileProxy):
            setattr(sys, name, _CleanedProxy(stream))


class Console(rich.console.Console):
    """A Rich console for foreign text: class names, run names, paths, errors of others.

    Rich reads markup (`[red]`) and emoji codes (`:smile:`) in any string, and lets ESC pass.
    """

    def __init__(self, **options: Any) -> None:
        """Makes the console.

        Args:
          **options: of Rich's console.
        """
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    @property
    def file(self) -> IO[str]:
        """The stream that is written to; ours is below the one that Rich puts in its place while a bar is drawn."""
        stream = super().file
        return cast("IO[str]", getattr(stream, "rich_proxied_file", stream))

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a string as text of this console; cleaned ahead of the layout, which counts columns."""
        return super().render_str(clean(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields the segments of what is printed; the control sequences in them are Rich's own."""
        for segment in super().render(renderable, options):
            cleaned = segment.text if segment.control else clean(segment.text)
            yield segment if cleaned == segment.text else Segment(cleaned, segment.style)
