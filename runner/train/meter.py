"""Training speed: time and steps of device calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")

# Calls that a recent rate is the mean of. A call may return before its devices are done, so its time may show in the
# next one; over several calls this evens out.
_CALLS_PER_RATE = 5

# Calls that the total leaves out: compilation, and calls whose size was chosen before their time was known.
_WARM_UP_CALLS = 3

# Measured steps below which a rate is mostly noise and is not reported.
_FEWEST_STEPS = 10


@dataclass
class Meter:
    """Time and steps of device calls, without warm-up.

    Attributes:
      seconds: wall time of the steps measured, without evaluation.
      cpu_seconds: processor time of the whole process in them.
      input_seconds: wall time of those steps in which they waited for their examples.
      recent: steps per second of the latest calls.
    """

    steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    input_seconds: float = 0.0
    recent: float = 0.0
    _calls: int = 0
    # (steps, seconds) of the latest calls.
    _latest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_CALLS_PER_RATE))
    _wall: float = field(default_factory=time.perf_counter)
    _cpu: float = field(default_factory=time.process_time)

    def restart(self) -> None:
        """Starts the clocks again after something that is not training."""
        self._elapsed()

    def _elapsed(self) -> tuple[float, float]:
        """Returns the wall and processor time since the last time, in seconds, and starts both clocks again."""
        wall = time.perf_counter()
        cpu = time.process_time()
        elapsed = (wall - self._wall, cpu - self._cpu)
        self._wall = wall
        self._cpu = cpu
        return elapsed

    def call_done(self, steps: int) -> float:
        """Counts a call that has just returned; returns the seconds per step of the latest calls."""
        seconds, cpu_seconds = self._elapsed()
        self._calls += 1
        if self._calls > _WARM_UP_CALLS:
            self.steps += steps
            self.seconds += seconds
            self.cpu_seconds += cpu_seconds
        if self._calls == 1:
            # The first call compiled: its time is shown, but it must not slow down the rates after it.
            self.recent = _ratio(steps, seconds)
        else:
            self._note(steps, seconds)
        return _ratio(1.0, self.recent)

    def _note(self, steps: int, seconds: float) -> None:
        self._latest.append((steps, seconds))
        latest_steps, latest_seconds = zip(*self._latest, strict=True)
        self.recent = _ratio(sum(latest_steps), sum(latest_seconds))

    def timed(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items of a loop, and counts the time that the loop waits for them."""
        begun = time.perf_counter()
        for item in items:
            if self._calls >= _WARM_UP_CALLS:
                self.input_seconds += time.perf_counter() - begun
            yield item
            begun = time.perf_counter()

    def waited(self) -> None:
        """Adds the time since the last call to that call, which returned before its devices were done."""
        seconds, cpu_seconds = self._elapsed()
        if self._calls > _WARM_UP_CALLS:
            self.seconds += seconds
            self.cpu_seconds += cpu_seconds
        if self._latest:
            self._note(0, seconds)

    @property
    def input_wait(self) -> float:
        """Fraction of the measured time in which steps waited for their examples, from 0 to 1."""
        return min(_ratio(self.input_seconds, self.seconds), 1.0)

    @property
    def steps_per_second(self) -> float:
        """Mean over all measured steps; 0 if there is none."""
        return _ratio(self.steps, self.seconds)

    @property
    def rate(self) -> float:
        """The same; 0 if too few steps were measured for a rate that means something."""
        if self.steps < _FEWEST_STEPS:
            return 0.0
        return self.steps_per_second


def _ratio(amount: float, per: float) -> float:
    """Returns a quotient; 0 if nothing was measured yet."""
    return amount / per if per > 0 else 0.0
