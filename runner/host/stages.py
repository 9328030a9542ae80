"""Progress lines of a command that would be silent for seconds: `compiling the step ... 3.2 s`.

A process prints no stages unless `speak` is called: of several processes the first one does. The run's log has all.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from runner.host.terminal import clean

logger = logging.getLogger(__name__)

# Process-wide, as the standard output is: whether stages are printed, and the stage whose line has not ended.
_speaks = [False]
_unended: list[str] = []


def speak(*, wanted: bool) -> None:
    """Makes this process print its stages from now on, or no longer."""
    _unended.clear()
    _speaks[:] = [wanted]


@contextmanager
def stage(what: str, *, alone: bool = False) -> Iterator[None]:
    """Prints what the block does, in a few words, and then how long it took.

    With `alone`, stages inside this one print nothing, as of something that is built very often.
    """
    if not _speaks[0]:
        yield
        return
    leave_line()
    what = clean(what)
    _unended.append(what)
    _write(f"{what} ...")
    _speaks[0] = not alone
    began = time.monotonic()
    try:
        yield
    finally:
        _speaks[0] = True
        took = f"{time.monotonic() - began:.1f} s"
        logger.info("%s: %s", what, took)
        if _unended == [what]:
            _unended.clear()
            _write(f" {took}\n")
        else:
            leave_line()
            _write(f"{what} ... {took}\n")


def leave_line() -> None:
    """Ends the line of the running stage, because something else is to be printed; its end gets another line."""
    if _unended:
        _unended.clear()
        _write("\n")


def _write(text: str) -> None:
    # Below a progress bar of Rich's, which would end the line.
    getattr(sys.stdout, "rich_proxied_file", sys.stdout).write(text)
    sys.stdout.flush()
