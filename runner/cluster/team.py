"""The interface of a process to the others (broadcast, all_gather, agree), and its version for a single process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from runner.errors import EngineError
from runner.host.signals import StopRequest

T = TypeVar("T")
# Records the end of a run: (why, signal number or None).
Ending = Callable[[str, int | None], None]


class ProcessError(EngineError):
    """Another process failed, died, does not answer, or has different settings; `code` is the exit code of all."""

    def __init__(self, why: str, code: int = 1) -> None:
        super().__init__(why)
        self.code = code


class Team:
    """The processes of a run as seen by one of them. This class is for a run of one process.

    All processes call `broadcast`, `all_gather` and `agree` with the same keys. A key is used once. Values are
    JSON-serializable.
    """

    # Of the class: a run of one process needs no state, and the teams of several set their own.
    index = 0
    count = 1

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which decides, prints and tracks."""
        return self.index == 0

    def broadcast(self, key: str, make: Callable[[], T], *, given_up: Callable[[], bool] | None = None) -> T:
        """Returns a value that process 0 computes; the others wait for it. If process 0 fails to, all fail.

        `given_up` says whether to stop waiting, because process 0 may never compute it.

        It raises process 0's error, ProcessError if the run has ended or the value is given up, or Interrupted.
        """
        del key, given_up
        return make()

    def all_gather(self, key: str, value: Any, *, given_up: Callable[[], bool] | None = None) -> list[Any]:
        """Returns the values of all processes, in order of their indices; raises as `broadcast` does."""
        del key, given_up
        return [value]

    def agree(self, what: str, value: object) -> None:
        """Raises ProcessError unless a value, in words and used once, is equal in all processes."""
        # Every process compares the values of all, so that all end with the same message.
        values = self.all_gather(f"agree {what}", value)
        for index, other in enumerate(values):
            if other != values[0]:
                raise ProcessError(f"process {index} and process 0 differ in {what}: {other} and {values[0]}")

    def waiting(self) -> AbstractContextManager[None]:
        """Returns a context in which the process waits for devices of others, for `cluster.timeout` at most."""
        return nullcontext()

    def raise_if_requested(self, stop: StopRequest) -> None:
        """Raises `Interrupted` if a signal came: in all processes at the same call, if one of them has received it."""
        stop.raise_if_requested()

    def on_end(self, end: Ending) -> Callable[[], None]:
        """Registers a function for a run that ends elsewhere, while the main thread is stuck.

        The function that is returned removes it.
        """
        del end
        return lambda: None

    def finish(self) -> None:
        """Waits until all processes have finished their work; raises as `broadcast` does."""

    def failed(self, why: str, *, own: bool) -> bool:
        """Stores why this process fails, in a line, for the others; returns whether it prints that itself.

        The line is its own if it names no process, because all may fail for the same reason.
        """
        del why, own
        return True

    def leave(self, code: int) -> None:
        """Exits with a code after the others know; does nothing for a run of one process."""
        del code

    def begin_leaving(self) -> None:
        """Declares that the main thread ends this process; blocks forever if another thread already does."""


ALONE = Team()
# The only state of this module. A list, so that `enter` needs no `global`.
_current: list[Team] = [ALONE]


def current() -> Team:
    """Returns this process's team."""
    return _current[-1]


def enter(team: Team) -> None:
    """Sets this process's team."""
    _current[:] = [team]
