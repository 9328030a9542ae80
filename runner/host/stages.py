"""Progress lines of a command that would be silent for seconds: `compiling the step ... 3.2 s`.

In a pipe or a file a line begins with its stage and ends with the seconds that it took. On a terminal there is one
line, which the next stage replaces and which is erased in the end; the run's log has them all. A process prints no
stages unless `speak` is called: of several processes the first one does.
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

# Erases the line with the cursor.
_ERASE = "\r\x1b[2K"


@dataclass
class _Stage:
    what: str
    began: float = field(default_factory=time.monotonic)
    # Whether something else was printed meanwhile, so that the stage's line has ended.
    is_left: bool = False
    # Whether stages inside it print nothing.
    is_alone: bool = False


# Process-wide, as the standard output is: the running stage, if any, and whether stages are printed.
_open: list[_Stage] = []
_speaks: list[bool] = [False]


def speak(*, wanted: bool) -> None:
    """Makes this process print its stages from now on, or no longer."""
    _open.clear()
    _speaks[:] = [wanted]


@contextmanager
def stage(what: str, *, alone: bool = False) -> Iterator[None]:
    """Prints what the block does, in a few words, and how long it took.

    A stage inside another one ends the outer one's line: what follows it there is short. With `alone`, stages inside
    this one print nothing, as of something that is built very often.
    """
    if not _speaks[0] or (_open and _open[0].is_alone):
        yield
        return
    _end()
    own = _Stage(clean(what), is_alone=alone)
    _open[:] = [own]
    line = f"{own.what} ..."
    if _replaces():
        # A line that wraps could not be erased.
        line = line[: shutil.get_terminal_size().columns - 1]
    _write(line)
    try:
        yield
    finally:
        if own in _open:
            _end()


def leave_line() -> None:
    """Ends the line of the running stage, because something else is to be printed; its end gets another line."""
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
    # The streams of a command remove control characters from foreign text; the ones that erase the line are ours.
    getattr(sys.stdout, "rich_proxied_file", sys.stdout).write(text)
    sys.stdout.flush()
