"""Standard output: a run goes on without it where its terminal is closed, and no foreign text controls a terminal."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

_SIGNAL_S = 0.3  # a pipe's reader that a closed terminal ends may leave before the signal reaches us
# What a name or an error text must not send to a terminal: control characters (C0 with ESC, DEL, C1), what reorders or
# breaks a line (marks and overrides of direction, line and paragraph separators), and halves of characters, which no
# encoding can write.
_CONTROLS = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_REPLACEMENT = "?"  # as `ls` shows them; every encoding has it, and it takes the one column that tables count
_MOVES = re.compile(r"(\x1b\[A)+")  # how tqdm goes back to an upper bar, in a write of its own


def clean(text: str) -> str:
    r"""Returns a text without the characters that control a terminal; ends of lines and tabs stay.

    >>> clean("\x1b[2Jdog")
    '?[2Jdog'
    """
    return _CONTROLS.sub(_REPLACEMENT, text)


class Output:
    """A standard stream that says nothing more, rather than fail, once nobody can read it any longer.

    A pipe whose reader left is an error as ever, unless the same event ends this program. What is written is cleaned,
    since names, paths and errors of others are in it; who styles text writes to `rich_proxied_file`.
    """

    def __init__(self, stream: TextIO, ending: Callable[[], bool]) -> None:
        """Takes over a stream.

        Args:
          stream: the real one.
          ending: says whether a signal has come.
        """
        self._stream = stream
        self._ending = ending
        # A line that begins with a carriage return is a bar, which begins it again and again. In another line one is
        # a name's: `print("failed:", name)` writes the name by itself.
        self._at_start = True
        self._is_bar = False

    def write(self, text: str) -> int:
        """Writes as the stream does, without what controls a terminal."""
        if _MOVES.fullmatch(text):
            return len(text)
        is_bar = self._is_bar or (self._at_start and text.startswith("\r"))
        tail = text.rpartition("\n")[2]
        if "\n" in text:
            self._at_start = not tail
            self._is_bar = tail.startswith("\r")
        else:
            self._at_start = self._at_start and not text
            self._is_bar = is_bar
        if not _CONTROLS.search(text):
            return self.write_styled(text)
        if not is_bar:
            return self.write_styled(clean(text))
        body = text.strip("\r")
        ahead = text[: len(text) - len(text.lstrip("\r"))]
        behind = text[len(text.rstrip("\r")) :] if body else ""
        text = ahead + clean(body) + behind
        return self.write_styled(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes as the stream does, without what controls a terminal."""
        for line in lines:
            self.write(line)

    @property
    def rich_proxied_file(self) -> StyledOutput:
        """The stream for text whose control sequences are our own; the name is the one that Rich asks for."""
        return StyledOutput(self)

    def write_styled(self, text: str) -> int:
        """Writes as the stream does."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flushes as the stream does."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        """Leads the stream nowhere; raises where its failure means something else."""
        if error.errno == errno.EPIPE and not self._ending():
            time.sleep(_SIGNAL_S)
        if error.errno != errno.EIO and not (error.errno == errno.EPIPE and self._ending()):
            raise error
        self.abandon()

    def abandon(self) -> None:
        """Leads nowhere what is written from now on."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


class StyledOutput:
    """The same stream for who has cleaned the text that it styles."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, text: str) -> int:
        """Writes as the stream does."""
        return self._output.write_styled(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def forgive_closed_terminal(ending: Callable[[], bool]) -> list[Output]:
    """Lets this process's standard output and error survive the end of their terminal.

    Args:
      ending: says whether a signal has come.

    Returns:
      What stands in for the two from now on.
    """
    made = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            made.append(Output(stream, ending))
            setattr(sys, name, made[-1])
    return made
