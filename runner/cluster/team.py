"""The interface of a process to the others (broadcast, all_gather, agree), and its version for a single process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from runner.errors import EngineError

T = TypeVar("T")


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

        Raises:
          OSError, RuntimeError: process 0 could not compute it.
          ProcessError: the run has ended, or the value is given up.
          Interrupted: the run was ended by a signal.
        """
        del key, given_up
        return make()

    def all_gather(self, key: str, value: Any, *, given_up: Callable[[], bool] | None = None) -> list[Any]:
        """Returns the values of all processes, in order of their indices; raises as `broadcast` does."""
        del key, given_up
        return [value]

    def agree(self, what: str, value: object) -> None:
        """Checks that a value, in words and used once, is equal in all processes.

        Raises:
          ProcessError: another process has a different one.
        """
        # Every process compares the values of all, so that all end with the same message.
        values = self.all_gather(f"agree {what}", value)
        for index, other in enumerate(values):
            if other != values[0]:
                raise ProcessError(f"process {index} and process 0 differ in {what}: {other} and {values[0]}")

    def waiting(self) -> AbstractContextManager[None]:
        """Returns a context in which the process waits for devices of others, for `cluster.timeout` at most."""
        return nullcontext()

    def pass_on(self, signum: int) -> None:
        """Tells process 0 that this process has received a signal."""

    def signalled(self) -> int | None:
        """Returns the first signal that another process has received; only process 0 knows it."""
        return None


ALONE = Team()
# The only state of this module. A list, so that `enter` needs no `global`.
_current: list[Team] = [ALONE]


def current() -> Team:
    """Returns this process's team."""
    return _current[-1]


def enter(team: Team) -> None:
    """Sets this process's team."""
    _current[:] = [team]
