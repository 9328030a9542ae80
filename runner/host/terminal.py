"""Standard output that a full disk does not end, and that lets no foreign text control the terminal."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Iterable

# Not from `typing`: a command installs these streams first, and every import delays that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

# What a name or an error text must not send to a terminal: control characters (C0 with ESC, DEL, C1), characters that
# reorder or break a line (marks and overrides of direction, line and paragraph separators), and lone surrogates, which
# no encoding can write.
_CONTROLS = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# As `ls` shows them. Every encoding has it, and it takes the one column that tables count.
_REPLACEMENT = "?"
# Moves the cursor up: tqdm returns to an upper bar with that, in a separate write.
_MOVES = re.compile(r"(\x1b\[A)+")

# Process-wide, as the streams are: what could not be written completely -> why, and since when.
_incomplete: dict[str, str] = {}


def note_incomplete(what: str, error: OSError) -> None:
    """Notes that a log or a stream lacks text, and when it began to."""
    _incomplete.setdefault(what, f"{what} could not be written ({error.strerror}) at {time.strftime('%H:%M:%S')}")


def incomplete() -> list[str]:
    """Returns one line for each log and stream of this process that lacks text."""
    return list(_incomplete.values())


def clean(text: str) -> str:
    r"""Returns a text without characters that control a terminal; line ends and tabs are kept.

    >>> clean("\x1b[2Jdog")
    '?[2Jdog'
    """
    return _CONTROLS.sub(_REPLACEMENT, text)


class Output:
    """A standard stream whose text is cleaned, since it contains foreign names, paths and errors."""

    # Whether an error of any stream, as of a full disk or a reader who left, is noted and not raised; what is printed
    # meanwhile is missing.
    is_spared = False

    def __init__(self, stream: TextIO, *, is_styled: bool = False) -> None:
        self._stream = stream
        self._is_styled = is_styled
        self._may_return = True

    @property
    def rich_proxied_file(self) -> Output:
        """The stream for text whose control sequences are our own; Rich looks for this name."""
        return Output(self._stream, is_styled=True)

    def write(self, text: str) -> int:
        """Writes as the stream does, without characters that control a terminal."""
        if not self._is_styled:
            if not text or _MOVES.fullmatch(text):
                return len(text)
            # A progress bar rewrites its line. In any other line a carriage return comes from a name:
            # `print("failed:", name)` writes the name separately.
            is_bar = self._may_return and text.startswith("\r")
            self._may_return = is_bar or text.endswith("\n")
            if is_bar:
                text = "\r" + clean(text[1:])
            else:
                text = clean(text)
        try:
            return self._stream.write(text)
        except OSError as error:
            self._note(error)
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes as `write` does."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Flushes as the stream does."""
        try:
            self._stream.flush()
        except OSError as error:
            self._note(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _note(self, error: OSError) -> None:
        if not self.is_spared:
            raise error
        note_incomplete(str(getattr(self._stream, "name", "output")).strip("<>"), error)
        # A full disk may have room again for what comes later; a pipe's reader and a terminal don't return.
        if error.errno in (errno.EPIPE, errno.EIO):
            self.abandon()

    def abandon(self) -> None:
        """Drops everything that is written from now on."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


def clean_output() -> None:
    """Replaces this process's standard output and error by streams that are cleaned."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            # A name may have characters that the locale's encoding lacks.
            stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, Output(stream))
