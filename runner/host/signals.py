"""Signals that end a command: Ctrl-C, SIGTERM and a closed terminal, from a command's first line to its last.

A signal ends a run between two device calls, never inside one. Imports nothing slow: a command installs this first.

Signal handlers belong to the process. So do the two lists here: `_process`, with the command's `StopRequest`, and
`_ends`, with a function that takes the place of the command's exit.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from runner.errors import Interrupted
from runner.host.terminal import forgive_closed_terminal

# Not from `typing`: a command installs its handlers first, and every import delays that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

# Windows has neither. A scheduler may send SIGUSR1 some time before a job's end.
_HANGUP = getattr(signal, "SIGHUP", None)
_WARNING = getattr(signal, "SIGUSR1", None)
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([_HANGUP] if _HANGUP else []), *([_WARNING] if _WARNING else []))
# A wrapper such as `srun` passes on a signal that the terminal has sent to this process already: signals within this
# time are one. A person who wants to end the program at once presses Ctrl-C again later than that.
TOGETHER_S = 1.0
# Interval at which a lost exception waits to be raised again: short for a person, and no load.
_AGAIN_S = 0.05


class StopRequest:
    """Notes the first signal, which the loop asks for. A second one, a while later, ends the program at once.

    Unless signals are `deferred`, the first one raises `Interrupted` at once: there is nothing to lose.
    """

    def __init__(self) -> None:
        self.deferred = False
        self._signum: int | None = None
        self._arrival = 0.0
        # Whether the next signal is our own, because the exception of the first one got lost.
        self._is_repeat = False
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> StopRequest:
        for signum in SIGNALS:
            # `nohup` ignores SIGHUP, and it must stay ignored.
            if signum != _HANGUP or signal.getsignal(signum) != signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if self._is_repeat:
            self._is_repeat = False
        elif self._signum is None:
            # The time first: a second signal may be handled right after the call of `monotonic`, and then must find
            # both values.
            self._arrival = time.monotonic()
            self._signum = signum
        elif self.just_now:
            return
        else:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        if not self.deferred:
            raise Interrupted(self._signum or signum)

    @property
    def requested(self) -> bool:
        """Whether a signal arrived."""
        return self._signum is not None

    @property
    def just_now(self) -> bool:
        """Whether a signal arrived so recently that another one counts as the same."""
        return self.requested and time.monotonic() - self._arrival < TOGETHER_S

    @property
    def signum(self) -> int | None:
        """The first signal that arrived; None: none has."""
        return self._signum

    def raise_if_requested(self) -> None:
        """Raises `Interrupted` if a signal arrived."""
        if self._signum is not None:
            raise Interrupted(self._signum)

    def raise_again(self) -> None:
        """Raises `Interrupted` in the main thread once more: the interpreter dropped the first one.

        Called in another thread; it waits while signals are deferred.
        """
        while self.deferred:
            time.sleep(_AGAIN_S)
        self._is_repeat = True
        signum = self._signum or signal.SIGINT
        main = threading.main_thread().ident
        if hasattr(signal, "pthread_kill") and main is not None:
            # This wakes a call that waits, which `interrupt_main` does not.
            signal.pthread_kill(main, signum)
        else:
            _thread.interrupt_main(signal.Signals(signum))

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
    """Returns the signal that caused an error, even if a library raised another one for it; None: there was none.

    Args:
      error: the error that ended something. If a signal arrived meanwhile, that is the cause, whatever the error is.
    """
    signum = current().signum
    while error is not None and signum is None:
        if isinstance(error, Interrupted):
            signum = error.signum
        elif isinstance(error, KeyboardInterrupt):
            signum = int(signal.SIGINT)
        error = error.__cause__ or error.__context__
    return signum


def run_main(module: str, function: str, *arguments: object) -> NoReturn:
    """Calls a function that returns an exit code, and exits with that, or with 128 + n if signal n arrived.

    Args:
      module: the module of the function, which is imported when the signals have handlers.
      function: its name.
      *arguments: of the call.
    """
    outputs = forgive_closed_terminal(lambda: current().requested)
    sys.unraisablehook = _raise_again
    stop = StopRequest().__enter__()
    _process[:] = [stop]
    code: object = None
    signum: int | None = None
    try:
        try:
            code = getattr(import_module(module), function)(*arguments)
        except SystemExit as ended:
            code = ended.code
        finally:
            # From here a signal only changes the exit code.
            stop.deferred = True
    except BrokenPipeError:
        # The reader of a pipe left, as `| head` does.
        code = 1
        for stream in outputs:
            stream.abandon()
    except BaseException as error:
        signum = interruption(error)
        if signum is None:
            raise
    if signum is None:
        signum = stop.signum
    if signum is not None:
        with suppress(OSError):
            print("interrupted", file=sys.stderr)
        code = 128 + signum
    _leave(code, just_now=stop.just_now)


def _leave(code: object, *, just_now: bool) -> NoReturn:
    """Exits; while the interpreter shuts down, a signal ends the process at once.

    Args:
      code: of the exit, as `sys.exit` takes it.
      just_now: whether a signal has just ended the command, and the same one may arrive once more.
    """
    with suppress(OSError):
        # `sys.exit` prints a string and exits with 1.
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    for signum in SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, signal.SIG_IGN if just_now else lambda number, _: os._exit(128 + number))
    exit_code = code if isinstance(code, int) else int(code is not None)
    for end in _ends:
        end(exit_code)
    sys.exit(code)  # type: ignore[arg-type]


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Raises a signal's exception again that was raised in a destructor or callback, where Python drops it."""
    if isinstance(unraisable.exc_value, Interrupted):
        stop = current()
        again = threading.Timer(_AGAIN_S, stop.raise_again)
        again.daemon = True
        # Starting the thread may take longer than the timer, and an exception that is raised here is dropped too.
        with stop.deferring():
            again.start()
    else:
        sys.__unraisablehook__(unraisable)
