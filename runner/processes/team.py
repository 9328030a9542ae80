"""What a process knows of the others, and has from them; the one of a run that is alone needs nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from runner.errors import EngineError

T = TypeVar("T")


class ProcessError(EngineError):
    """Another process failed, died, does not answer, or does not agree.

    Attributes:
      code: that all exit with.
    """

    def __init__(self, why: str, code: int = 1) -> None:
        super().__init__(why)
        self.code = code


class Team:
    """The processes of a run as one of them sees the others. This one is alone.

    Every method is called by all of them, with the same keys. A key is used once.

    Attributes:
      index: this process's number, from 0.
      count: how many there are.
    """

    index = 0
    count = 1

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which decides, shows and records."""
        return self.index == 0

    def broadcast(self, key: str, make: Callable[[], T], *, given_up: Callable[[], bool] | None = None) -> T:
        """Returns what process 0 makes; the others wait for it. Where that fails there, it fails in all.

        Args:
          key: names the value.
          make: gives what JSON can hold.
          given_up: tells whether nobody wants it any more, as process 0 may never say it.

        Raises:
          OSError, RuntimeError: process 0 could not make it.
          ProcessError: the run has ended, or it is given up.
          Interrupted: likewise, by a signal.
        """
        del key, given_up
        return make()

    def all_gather(self, key: str, value: Any, *, given_up: Callable[[], bool] | None = None) -> list[Any]:
        """Returns the values of all processes, in their order.

        Args:
          key: names the value.
          value: this process's, of what JSON can hold.
          given_up: tells whether nobody wants them any more, as another process may never say its own.

        Raises:
          ProcessError: the run has ended, or it is given up.
          Interrupted: likewise, by a signal.
        """
        del key, given_up
        return [value]

    def agree(self, what: str, value: object) -> None:
        """Checks that all processes have the same of something.

        Args:
          what: in words, used once.
          value: of what JSON can hold.

        Raises:
          ProcessError: one has another.
        """
        values = self.all_gather(f"agree {what}", value)
        for index, other in enumerate(values):
            if other != values[0]:
                raise ProcessError(
                    f"process {index} does not agree with process 0: {what} is {other} there and {values[0]} on "
                    "process 0"
                )

    def waiting(self) -> AbstractContextManager[None]:
        """Returns a context for what waits for the devices of other processes, which may last `cluster.timeout`."""
        return nullcontext()

    def pass_on(self, signum: int) -> None:
        """Tells process 0 that a signal came here."""

    def signalled(self) -> int | None:
        """Returns the first signal that another process told of; process 0 alone knows."""
        return None

    def report(self, usage: Mapping[str, float]) -> None:
        """Tells process 0 what this process takes of its machine."""

    def reported(self) -> dict[int, Mapping[str, float]]:
        """Returns by process what others have told of themselves since the last time; process 0 alone knows."""
        return {}


ALONE = Team()
_current: list[Team] = [ALONE]


def current() -> Team:
    """Returns this process's team."""
    return _current[-1]


def enter(team: Team) -> None:
    """Makes a team this process's."""
    _current[:] = [team]
