"""Standard output that survives a closed terminal and a full disk, and lets no foreign text control the terminal."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterable

# Not from `typing`: a command installs these streams first, and every import delays that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

# A closed terminal may end a pipe's reader before its signal reaches this process: so long we wait for the signal.
_SIGNAL_S = 0.3
# What a name or an error text must not send to a terminal: control characters (C0 with ESC, DEL, C1), characters that
# reorder or break a line (marks and overrides of direction, line and paragraph separators), and lone surrogates, which
# no encoding can write.
_CONTROLS = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# As `ls` shows them. Every encoding has it, and it takes the one column that tables count.
_REPLACEMENT = "?"
# Errors of a file whose disk has no room for it.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Moves the cursor up: tqdm returns to an upper bar with that, in a separate write.
_MOVES = re.compile(r"(\x1b\[A)+")


# Process-wide, as the streams are: what could not be written completely -> why, and since when.
_incomplete: dict[str, str] = {}


def note_incomplete(what: str, error: OSError) -> None:
    """Notes that a log or a stream lacks text, and when it began to.

    Args:
      what: the log or stream, in words.
      error: why it can't be written.
    """
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
    """A standard stream that drops its output, rather than fail, once nobody can read it any longer.

    A pipe whose reader left is an error as usual, unless the same event ends this program. The text is cleaned, since
    it contains foreign names, paths and errors. Code that styles text writes to `rich_proxied_file`.

    Attributes:
      is_spared: whether a full disk under it is noted and not raised; what is printed meanwhile is missing.
    """

    is_spared = False

    def __init__(self, stream: TextIO, ending: Callable[[], bool]) -> None:
        """Takes over a stream.

        Args:
          stream: the real one.
          ending: returns whether a signal has arrived.
        """
        self._stream = stream
        self._ending = ending
        self._name = str(getattr(stream, "name", "output")).strip("<>")
        # A line that begins with a carriage return is a progress bar, which rewrites it. In any other line a carriage
        # return comes from a name: `print("failed:", name)` writes the name separately.
        self._at_start = True
        self._is_bar = False

    def write(self, text: str) -> int:
        """Writes as the stream does, without characters that control a terminal."""
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
        # Of a bar, the carriage returns at both ends stay.
        body = text.strip("\r")
        leading = text[: len(text) - len(text.lstrip("\r"))]
        trailing = text[len(text.rstrip("\r")) :] if body else ""
        return self.write_styled(leading + clean(body) + trailing)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes as the stream does, without characters that control a terminal."""
        for line in lines:
            self.write(line)

    @property
    def rich_proxied_file(self) -> StyledOutput:
        """The stream for text whose control sequences are our own; Rich looks for this name."""
        return StyledOutput(self)

    def write_styled(self, text: str) -> int:
        """Writes as the stream does."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError as error:
            # A name may have characters that the locale's encoding lacks.
            return self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flushes as the stream does."""
        try:
            self._stream.flush()
        except OSError as error:
            if self._give_up(error):
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> bool:
        """Drops the output from now on; raises the error if its cause is not the end of the terminal.

        Returns:
          Whether all output is dropped; False: the disk is full, and there may be room again for what comes later.
        """
        if self.is_spared and error.errno in _FULL:
            note_incomplete(self._name, error)
            return False
        if error.errno == errno.EPIPE and not self._ending():
            time.sleep(_SIGNAL_S)
        if error.errno != errno.EIO and not (error.errno == errno.EPIPE and self._ending()):
            raise error
        self.abandon()
        return True

    def abandon(self) -> None:
        """Drops everything that is written from now on."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


class StyledOutput:
    """The same stream for code that has cleaned the text which it styles."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, text: str) -> int:
        """Writes as the stream does."""
        return self._output.write_styled(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def spare_output() -> None:
    """Keeps this process running if the disk under its output is full: its results are in other files."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Output):
            stream.is_spared = True


def forgive_closed_terminal(ending: Callable[[], bool]) -> list[Output]:
    """Replaces this process's standard output and error by streams that survive the end of their terminal.

    Args:
      ending: returns whether a signal has arrived.

    Returns:
      The new streams.
    """
    outputs = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            output = Output(stream, ending)
            setattr(sys, name, output)
            outputs.append(output)
    return outputs
