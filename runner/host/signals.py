"""Signals that end a command: Ctrl-C, SIGTERM, SIGHUP and SIGUSR1, from a command's first line to its last.

A signal ends a run between two device calls, never inside one. Imports nothing slow: a command installs this first.

Signal handlers belong to the process. So do the two lists here: `_process`, with the command's `StopRequest`, and
`_ends`, with a function that takes the place of the command's exit.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from runner.errors import Interrupted
from runner.host.terminal import Output, clean_output

# Not from `typing`: a command installs its handlers first, and every import delays that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

# A scheduler may send SIGUSR1 some time before a job's end.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# A wrapper such as `srun` passes on a signal that the terminal has sent to this process already: signals within this
# time are one. A person who wants to end the program at once presses Ctrl-C again later than that.
TOGETHER_S = 1.0


class StopRequest:
    """Notes the first signal, which the loop asks for. A second one, a while later, ends the program at once.

    Unless signals are `deferred`, the first one raises `Interrupted` at once: there is nothing to lose.

    Attributes:
      signum: the first signal that arrived; None: none has.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.signum: int | None = None
        self._arrival = 0.0
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> StopRequest:
        for signum in SIGNALS:
            # `nohup` ignores SIGHUP, and it must stay ignored.
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if self.signum is None:
            # The time first: a second signal may be handled right after the call of `monotonic`, and then must find
            # both values.
            self._arrival = time.monotonic()
            self.signum = signum
        elif self.just_now:
            return
        else:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        if not self.deferred:
            raise Interrupted(self.signum or signum)

    @property
    def requested(self) -> bool:
        """Whether a signal arrived."""
        return self.signum is not None

    @property
    def just_now(self) -> bool:
        """Whether a signal arrived so recently that another one counts as the same."""
        return self.requested and time.monotonic() - self._arrival < TOGETHER_S

    def raise_if_requested(self) -> None:
        """Raises `Interrupted` if a signal arrived."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Defers signals during the block; `raise_if_requested` raises for one that arrived meanwhile."""
        before = self.deferred
        self.deferred = True
        try:
            yield
        finally:
            self.deferred = before


_ends: list[Callable[[int], None]] = []
_process: list[StopRequest] = []


def at_exit(end: Callable[[int], None]) -> None:
    """Sets a function that replaces the command's exit: it gets the exit code, and ends the process."""
    _ends[:] = [end]


def current() -> StopRequest:
    """Returns the `StopRequest` of this process; outside a command, one that never has a signal."""
    return _process[-1] if _process else StopRequest()


@contextmanager
def heard() -> Iterator[StopRequest]:
    """Yields the `StopRequest` of this process: the command's or, if no command runs, a new one for the block."""
    if _process:
        yield _process[-1]
        return
    with StopRequest() as stop:
        _process.append(stop)
        try:
            yield stop
        finally:
            _process.clear()


def interruption(error: BaseException | None) -> int | None:
    """Returns the signal that caused an error, even if a library raised another one for it; None: there was none."""
    # If a signal arrived meanwhile, that is the cause, whatever the error is.
    signum = current().signum
    while error is not None and signum is None:
        if isinstance(error, Interrupted):
            signum = error.signum
        elif isinstance(error, KeyboardInterrupt):
            signum = int(signal.SIGINT)
        error = error.__cause__ or error.__context__
    return signum


@contextmanager
def exiting() -> Iterator[list[object]]:
    """Handles signals while a command runs, and exits with the code that it appends, or 128 + n if signal n arrived.

    A context, so that it is no frame between the command line and a training step.
    """
    clean_output()
    stop = StopRequest().__enter__()
    _process[:] = [stop]
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
