"""How a command ends: with its exit code, or with that of a signal, from its first line to its last.

Imports nothing slow: a command enters `exiting` first.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from runner.host.signals import SIGNALS, StopRequest, interruption, process
from runner.host.terminal import Output, clean_output

# Not from `typing`: a command installs its handlers first, and every import delays that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# A function that takes the place of the command's exit. Process-wide, as the exit is.
_ends: list[Callable[[int], None]] = []


def at_exit(end: Callable[[int], None]) -> None:
    """Sets a function that replaces the command's exit: it gets the exit code, and ends the process."""
    _ends[:] = [end]


@contextmanager
def exiting() -> Iterator[list[object]]:
    """Handles signals while a command runs, and exits with the code that it appends, or 128 + n if signal n arrived.

    A context, so that it is no frame between the command line and a training step.
    """
    clean_output()
    stop = StopRequest().__enter__()
    process[:] = [stop]
    codes: list[object] = []
    signum: int | None = None
    try:
        try:
            yield codes
        except SystemExit as ended:
            codes.append(ended.code)
        finally:
            # From here a signal only changes the exit code.
            stop.deferred = True
    except BrokenPipeError:
        # The reader of a pipe left, as `| head` does.
        codes.append(1)
        _abandon_output()
    except BaseException as error:
        signum = interruption(error)
        if signum is None:
            raise
    if signum is None:
        signum = stop.signum
    if signum is not None:
        with suppress(OSError):
            print("interrupted", file=sys.stderr)
        codes.append(128 + signum)
    _leave(codes[-1], just_now=stop.just_now)


def _leave(code: object, *, just_now: bool) -> NoReturn:
    """Exits with a code; while the interpreter shuts down, a signal ends the process at once.

    If a signal has just ended the command, the same one may arrive once more, and is ignored.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # The interpreter flushes again as it shuts down.
        _abandon_output()
    for signum in SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, signal.SIG_IGN if just_now else lambda number, _: os._exit(128 + number))
    exit_code = code if isinstance(code, int) else int(code is not None)
    for end in _ends:
        end(exit_code)
    sys.exit(exit_code)


def _abandon_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Output):
            stream.abandon()
