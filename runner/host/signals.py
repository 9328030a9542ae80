"""Signals that end a command: Ctrl-C, SIGTERM, SIGHUP and SIGUSR1.

A signal ends a run between two device calls, never inside one. Imports nothing slow: a command installs this first.
"""

from __future__ import annotations

import _thread
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from runner.errors import Interrupted

# Not from `typing`: a command installs its handlers first, and every import delays that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_MAIN_THREAD = _thread.get_ident()  # which imports this module
# A scheduler may send SIGUSR1 some time before a job's end.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# A wrapper such as `srun` passes on a signal that the terminal has sent to this process already: signals within this
# time are one. A person who wants to end the program at once presses Ctrl-C again later than that.
TOGETHER_S = 1.0
# A shell's exit code of a process that signal n has killed is this and n.
SIGNALED = 128


class StopRequest:
    """Notes the first signal, which the loop asks for. A second one, a while later, ends the program at once.

    Unless signals are `deferred`, the first one raises `Interrupted` at once: there is nothing to lose.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.signum: int | None = None
        self._arrival = 0.0
        self._at_once = False
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
        if self._at_once:
            with suppress(OSError):
                os.write(1, b" interrupted\n")  # ends the stage's line; stderr may be the log for now
            os._exit(128 + signum)
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

    @contextmanager
    def importing(self, *, at_once: bool = False) -> Iterator[None]:
        """Defers signals, and then raises `Interrupted`: a library whose import is cut off may crash at any time.

        With `at_once` a signal ends the process there and then, which has nothing to save or to record yet.
        """
        if self.deferred or _thread.get_ident() != _MAIN_THREAD:  # which alone handles signals
            yield
            return
        self._at_once = at_once
        try:
            with self.deferring():
                yield
        finally:
            self._at_once = False
        self.raise_if_requested()


# The command's, if one runs. Process-wide, as signal handlers are.
process: list[StopRequest] = []


def current() -> StopRequest:
    """Returns the `StopRequest` of this process; outside a command, one that never has a signal."""
    return process[-1] if process else StopRequest()


@contextmanager
def collected() -> Iterator[list[int]]:
    """Yields the list of the signals that come during the block, for a program that passes them on to its children."""
    signals: list[int] = []
    before = {}
    for signum in SIGNALS:
        # As in `StopRequest`, a hangup that is ignored stays ignored.
        if signal.getsignal(signum) != signal.SIG_IGN:
            before[signum] = signal.signal(signum, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


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


def signal_of(code: int) -> int:
    """Returns the signal that ended a process, by its exit code as `subprocess` or a shell gives it; 0: none did."""
    if code < 0:
        return -code
    return max(0, code - SIGNALED)


def described(code: int) -> str:
    """Returns an exit code in words; that of `subprocess` or of a shell for a process that a signal has killed."""
    signum = signal_of(code)
    with suppress(ValueError):
        return f"killed by {signal.Signals(signum).name}"
    return f"ended with exit code {code}"
