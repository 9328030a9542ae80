"""Says what a command is doing where it would be silent for seconds: `compiling the step ... 3.2 s`.

In a pipe or a file a stage's line is begun with it, and ended with the seconds that it took. On a terminal there is
one line, which the next stage replaces and which is gone in the end; the run's log keeps them all. A process says
nothing of its stages unless it is told to: of several processes the first does.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from runner.host.terminal import clean

logger = logging.getLogger(__name__)

_ERASE = "\r\x1b[2K"  # the line that the cursor is in


@dataclass
class _Stage:
    what: str
    began: float = field(default_factory=time.monotonic)
    is_left: bool = False  # something else was printed meanwhile


_open: list[_Stage] = []  # the one under way, if there is one
_speaks: list[bool] = [False]


def speak(*, wanted: bool) -> None:
    """Has this process say its stages from now on, or no longer."""
    _open.clear()
    _speaks[:] = [wanted]


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Says what the block does, and how long it took.

    A stage in another one ends the line of that, as what follows in it is short.

    Args:
      what: in a few words, as `compiling the step`.
    """
    if not _speaks[0]:
        yield
        return
    _end()
    what = clean(what)
    own = _Stage(what)
    _open[:] = [own]
    _write(f"{what} ..."[: shutil.get_terminal_size().columns - 1] if _replaces() else f"{what} ...")
    try:
        yield
    finally:
        if own in _open:
            _end()


def leave_line() -> None:
    """Ends the line that a stage has begun, as something else is to be printed; the stage has another at its end."""
    if _open and not _open[0].is_left:
        _open[0].is_left = True
        _write("\n")


def _end() -> None:
    if not _open:
        return
    own = _open.pop()
    took = f"{time.monotonic() - own.began:.1f} s"
    logger.info("%s: %s", own.what, took)
    if _replaces():
        _write("" if own.is_left else _ERASE)
    else:
        _write(f"{own.what} ... {took}\n" if own.is_left else f" {took}\n")


def _replaces() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _write(text: str) -> None:
    # What erases the line is our own; the streams of a command clean everything else.
    write = getattr(sys.stdout, "write_styled", sys.stdout.write)
    write(text)
    sys.stdout.flush()
