"""How fast training is: time and steps of its device calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")

_CALLS_A_RATE = 5
_WARM_UP_CALLS = 3  # compilation, and calls sized before their time was known
_FEWEST = 10  # measured steps below which a rate says nothing


@dataclass
class Meter:
    """Time and steps of device calls, warm-up excluded.

    Attributes:
      steps: steps measured.
      seconds: wall time of those steps, evaluation excluded.
      cpu_seconds: processor time of the whole process in them.
      input_seconds: wall time of those steps in which they waited for their examples.
      recent: steps a second of the latest calls.
    """

    steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    input_seconds: float = 0.0
    recent: float = 0.0
    _calls: int = 0
    # A call may return before its devices are done; its time then shows in the next, so several are taken together.
    _latest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_CALLS_A_RATE))
    _wall: float = field(default_factory=time.perf_counter)
    _cpu: float = field(default_factory=time.process_time)

    def restart(self) -> None:
        """Starts the clock again after something that is not training."""
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def call_done(self, steps: int) -> float:
        """Counts a call that has just returned; returns the seconds a step of the latest calls."""
        wall = time.perf_counter()
        cpu = time.process_time()
        seconds = wall - self._wall
        self._calls += 1
        if self._calls > _WARM_UP_CALLS:
            self.steps += steps
            self.seconds += seconds
            self.cpu_seconds += cpu - self._cpu
        if self._calls > 1:  # the first one compiled
            self._note(steps, seconds)
        else:
            self.recent = steps / seconds if seconds > 0 else 0.0
        self._wall = wall
        self._cpu = cpu
        return 1.0 / self.recent if self.recent else 0.0

    def _note(self, steps: int, seconds: float) -> None:
        self._latest.append((steps, seconds))
        done, taken = (sum(column) for column in zip(*self._latest, strict=True))
        self.recent = done / taken if taken > 0 else 0.0

    def timed(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields what a loop takes, and counts the time that it waits for it."""
        iterator = iter(items)
        while True:
            begun = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            if self._calls >= _WARM_UP_CALLS:
                self.input_seconds += time.perf_counter() - begun
            yield item

    def waited(self) -> None:
        """Counts the time since the last call as its own: a call returns before its devices are done."""
        wall = time.perf_counter()
        cpu = time.process_time()
        if self._calls > _WARM_UP_CALLS:
            self.seconds += wall - self._wall
            self.cpu_seconds += cpu - self._cpu
        if self._latest:
            self._note(0, wall - self._wall)
        self._wall = wall
        self._cpu = cpu

    @property
    def input_wait(self) -> float:
        """Share of the measured time in which the devices' next examples were not there yet, from 0 to 1."""
        return min(self.input_seconds / self.seconds, 1.0) if self.seconds else 0.0

    @property
    def tells(self) -> bool:
        """Whether enough steps were measured for a rate that means something."""
        return self.steps >= _FEWEST

    @property
    def steps_per_second(self) -> float:
        """Mean over all measured steps; the last call's where none was measured yet."""
        return self.steps / self.seconds if self.seconds else self.recent
