"""The clock that every peer is measured with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Budget:
    """How long one contender is measured for.

    Attributes:
      seconds: length of the steady window.
      steps: closes the window earlier, after that many steps; null: only the time counts.
      warmup_steps: steps trained before the clock exists, so that tracing and compiling are over.
    """

    seconds: float
    steps: int | None
    warmup_steps: int


@dataclass
class Meter:
    """Counts steps and time over a steady window, across epochs.

    What an epoch costs to start (a new iterator, filling the shuffle buffer, its first step) is kept apart from the
    window and goes into the whole-epoch rate alone. Call `epoch_begin`, then `step_begin` before each step, then
    `epoch_end`; training stops when `step_begin` returns true.

    Attributes:
      budget: when the window closes.
      sync: waits until the work that was dispatched so far is done; called at the window's edges only.
      steps_per_mark: training steps between two calls of `step_begin`.
    """

    budget: Budget
    sync: Callable[[], object]
    steps_per_mark: int = 1
    steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    epoch_starts: list[float] = field(default_factory=list)
    _marks: int = 0
    _open: tuple[int, float, float] | None = None
    _begun: float = 0.0

    def epoch_begin(self) -> None:
        """Marks the start of an epoch, before its iterator exists."""
        self._marks = 0
        self._begun = time.perf_counter()

    def step_begin(self) -> bool:
        """Marks the start of a step.

        Returns:
          True once the budget is used up: train no further.
        """
        mark = self._marks
        self._marks = self._marks + 1
        if mark == 0:
            return self.done
        if mark == 1:
            self.sync()
            now = time.perf_counter()
            self.epoch_starts.append(now - self._begun)
            self._open = (mark, now, time.process_time())
        elif self._open is not None and self._spent(mark, self._open):
            self._close(mark)
        return self.done

    def epoch_end(self) -> None:
        """Marks the end of an epoch, after its last step."""
        if self._open is not None:
            self._close(self._marks)

    @property
    def done(self) -> bool:
        """Whether the budget is used up."""
        return self.seconds >= self.budget.seconds or (
            self.budget.steps is not None and self.steps >= self.budget.steps
        )

    def result(self, steps_per_epoch: int) -> dict[str, float | int | None]:
        """Sums up the window.

        Args:
          steps_per_epoch: steps in one pass over the training data.

        Returns:
          `steps_per_second` and `cpu_ms_per_step` of the steady window, its `steps` and `seconds`, and
          `epoch_steps_per_second`: the rate of a whole epoch, its start included.

        Raises:
          RuntimeError: the window holds no step.
        """
        if not self.steps:
            raise RuntimeError("the measured window holds no step: raise --seconds, --steps or --examples")
        rate = self.steps / self.seconds
        start = sorted(self.epoch_starts)[len(self.epoch_starts) // 2]
        epoch = start + max(0, steps_per_epoch - self.steps_per_mark) / rate
        return {
            "steps_per_second": rate,
            "steps": self.steps,
            "seconds": self.seconds,
            "cpu_ms_per_step": 1e3 * self.cpu_seconds / self.steps,
            "epoch_start_seconds": start,
            "epoch_steps_per_second": steps_per_epoch / epoch,
        }

    def _spent(self, mark: int, opened: tuple[int, float, float]) -> bool:
        steps = self.steps + (mark - opened[0]) * self.steps_per_mark
        seconds = self.seconds + time.perf_counter() - opened[1]
        return seconds >= self.budget.seconds or (self.budget.steps is not None and steps >= self.budget.steps)

    def _close(self, mark: int) -> None:
        assert self._open is not None
        self.sync()
        first, wall, cpu = self._open
        self.steps += (mark - first) * self.steps_per_mark
        self.seconds += time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu
        self._open = None
