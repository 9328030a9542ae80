"""Progress lines of a command that would be silent for seconds: `compiling the step ... 3.2 s`.

A process prints no stages unless `speak` is called: of several processes the first one does. The run's log has all.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.host.terminal import clean

logger = logging.getLogger(__name__)

# Process-wide, as the standard output is: whether stages are printed, and the stage whose line has not ended.
_speaks = [False]
_unended: list[str] = []
# Seconds between two lines of a stage that says how far it is: a choice, so that minutes do not look like a hang.
_EACH = 20.0


def speak(*, wanted: bool) -> None:
    """Makes this process print its stages from now on, or no longer."""
    _unended.clear()
    _speaks[:] = [wanted]


@contextmanager
def stage(what: str, *, alone: bool = False) -> Iterator[Callable[[str], None]]:
    """Prints what the block does, in a few words, and then how long it took.

    With `alone`, stages inside this one print nothing, as of something that is built very often. The block gets a
    function that prints how far it is, such as `12 of 80`, in a line of its own and at most every 20 seconds.
    """
    if not _speaks[0]:
        yield lambda _: None
        return
    leave_line()
    what = clean(what)
    _unended.append(what)
    _write(f"{what} ...")
    _speaks[0] = not alone
    began = printed = time.monotonic()

    def reached(how_far: str) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= _EACH:
            printed = now
            leave_line()
            _write(f"{what}: {how_far} ... {now - began:.1f} s\n")

    try:
        yield reached
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
