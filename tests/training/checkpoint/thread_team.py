"""The processes of a run as threads of one process, each with its own team."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from runner.processes.team import ProcessError, Team

T = TypeVar("T")
WITHIN_S = 60.0


class Meeting:
    """What the threads have sent each other."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.condition = threading.Condition()
        self.values: defaultdict[str, dict[int, Any]] = defaultdict(dict)
        self.has_lost = False

    def lose(self) -> None:
        """Ends the run, because a process was lost."""
        with self.condition:
            self.has_lost = True
            self.condition.notify_all()


class ThreadTeam(Team):
    """One of the processes; values are sent as JSON, as between real ones, and each key is used once."""

    def __init__(self, meeting: Meeting, index: int) -> None:
        self.index, self.count, self._meeting = index, meeting.count, meeting

    def all_gather(self, key: str, value: Any, *, given_up: Any = None) -> list[Any]:
        del given_up
        meeting = self._meeting
        with meeting.condition:
            values = meeting.values[key]
            assert self.index not in values, f"{key} is used twice"
            values[self.index] = json.loads(json.dumps(value))
            meeting.condition.notify_all()
            met = meeting.condition.wait_for(lambda: len(values) == self.count or meeting.has_lost, WITHIN_S)
            if len(values) < self.count:
                raise ProcessError("a process was lost" if met else f"a process never sends {key}")
            return [values[index] for index in range(self.count)]

    def broadcast(self, key: str, make: Callable[[], T], *, given_up: Any = None) -> T:
        del given_up
        content: dict[str, Any] = {}
        if self.is_first:
            try:
                content = {"made": make()}
            except OSError as error:
                content = {"error": str(error)}
        first, *_ = self.all_gather(f"broadcast {key}", content)
        if "error" in first:
            raise OSError(first["error"])
        made: T = first["made"]
        return made


def together(count: int, act: Callable[[ThreadTeam], T]) -> list[T | BaseException]:
    """Runs a function in so many threads; returns what it returned or raised in each."""
    meeting = Meeting(count)

    def one(index: int) -> T | BaseException:
        try:
            return act(ThreadTeam(meeting, index))
        except BaseException as error:
            meeting.lose()
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def all_of(count: int, act: Callable[[ThreadTeam], T]) -> list[T]:
    """Runs a function in so many threads; returns what it returned in each, or raises the first error."""
    results: list[T] = []
    for result in together(count, act):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
