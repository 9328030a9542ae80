"""What ends a command from outside: Ctrl-C, SIGTERM and a closed terminal, from a command's first line to its last.

A signal ends a run between two device calls, never inside one. Imports nothing slow: a command installs this first.
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

from runner.errors import Interrupted
from runner.host.terminal import forgive_closed_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

_HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
_SOON = getattr(signal, "SIGUSR1", None)  # which a scheduler may send ahead of a job's end
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([_HANGUP] if _HANGUP else []), *([_SOON] if _SOON else []))
TOGETHER_S = 1.0  # a wrapper passes on what the terminal has sent already: such signals are one
_AGAIN_S = 0.05


class StopRequest:
    """Notes the first signal; the loop asks for it. A second one, a while later, ends the program where it stands.

    While nothing is `deferred` the first signal raises `Interrupted` at once: there is nothing to lose.
    """

    def __init__(self) -> None:
        self.deferred = False
        self._signum: int | None = None
        self._came = 0.0
        self._again = False  # what was raised for the signal got lost
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for signum in SIGNALS:
            if signum != _HANGUP or signal.getsignal(signum) != signal.SIG_IGN:  # which it is under nohup
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if self._again:
            self._again = False
        elif self._signum is None:
            # First the time: a second signal may be handled after the call, and must find both.
            self._came = time.monotonic()
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
        """Whether a signal came."""
        return self._signum is not None

    @property
    def just_now(self) -> bool:
        """Whether one came so lately that another would be the same."""
        return self.requested and time.monotonic() - self._came < TOGETHER_S

    @property
    def signum(self) -> int | None:
        """The first signal that came; null: none."""
        return self._signum

    def raise_if_requested(self) -> None:
        """Raises `Interrupted` if a signal came."""
        if self._signum is not None:
            raise Interrupted(self._signum)

    def raise_again(self) -> None:
        """Raises `Interrupted` in the main thread once more: the interpreter dropped the first one.

        Called in another thread; it waits while signals are deferred.
        """
        while self.deferred:
            time.sleep(_AGAIN_S)
        self._again = True
        signum = self._signum or signal.SIGINT
        main = threading.main_thread().ident
        if hasattr(signal, "pthread_kill") and main is not None:
            signal.pthread_kill(main, signum)  # it wakes a call that waits, which interrupt_main does not
        else:
            _thread.interrupt_main(signal.Signals(signum))

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Lets nothing interrupt the block; what came meanwhile is told by `raise_if_requested`."""
        before = self.deferred
        self.deferred = True
        try:
            yield
        finally:
            self.deferred = before


_last: list[Callable[[int], None]] = []


def at_exit(end: Callable[[int], None]) -> None:
    """Has something done in place of the command's exit; it takes the exit code, and ends the process."""
    _last[:] = [end]


_process: list[StopRequest] = []  # that of the command that this process runs


def current() -> StopRequest:
    """Returns what notes this process's signals; outside a command one that never has any."""
    return _process[-1] if _process else StopRequest()


@contextmanager
def heard() -> Iterator[StopRequest]:
    """Yields what notes this process's signals: the command's own, or, where none runs, one for the block."""
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
    """Returns the signal that an error stands for, whatever a library made of it on its way; null: none.

    Args:
      error: what ended something; a signal that came meanwhile is why, whatever it is.
    """
    signum = current().signum
    while error is not None and signum is None:
        if isinstance(error, Interrupted):
            signum = error.signum
        elif isinstance(error, KeyboardInterrupt):
            signum = int(signal.SIGINT)
        error = error.__cause__ or error.__context__
    return signum


def run_main(body: Callable[[], int]) -> NoReturn:
    """Runs a command and exits with its code, which is 128 + n where signal n came.

    Args:
      body: the command, its imports included; returns its exit code.
    """
    outputs = forgive_closed_terminal(lambda: current().requested)
    sys.unraisablehook = _raise_again
    stop = StopRequest().__enter__()
    _process[:] = [stop]
    code: object = None
    signum: int | None = None
    try:
        try:
            code = body()
        except SystemExit as ended:
            code = ended.code
        finally:
            stop.deferred = True  # from here there is only the exit code to be told
    except BrokenPipeError:  # the reader of a pipe left, as `| head` does
        code = 1
        for stream in outputs:
            stream.abandon()
    except BaseException as error:
        signum = interruption(error)
        if signum is None:
            raise
    signum = signum if signum is not None else stop.signum
    if signum is not None:
        with suppress(OSError):
            print("interrupted", file=sys.stderr)
        code = 128 + signum
    _leave(code, just_now=stop.just_now)


def _leave(code: object, *, just_now: bool) -> NoReturn:
    """Exits; while the interpreter is taken down a signal ends it with no more ado.

    Args:
      code: to exit with.
      just_now: whether a signal ends the command, which may come once more.
    """
    with suppress(OSError):
        if isinstance(code, str):  # as `sys.exit` says it
            print(code, file=sys.stderr)
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    for signum in SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, signal.SIG_IGN if just_now else lambda number, _: os._exit(128 + number))
    for end in _last:
        end(code if isinstance(code, int) else int(code is not None))
    sys.exit(code)  # type: ignore[arg-type]


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Takes up a signal's exception that fell into a destructor or a callback, where the interpreter drops it."""
    if isinstance(unraisable.exc_value, Interrupted):
        stop = current()
        again = threading.Timer(_AGAIN_S, stop.raise_again)
        again.daemon = True
        with stop.deferring():  # a start may take longer than the timer, and what is raised in here is dropped too
            again.start()
    else:
        sys.__unraisablehook__(unraisable)
