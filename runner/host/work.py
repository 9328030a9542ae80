"""How long the main thread of this process has done each kind of work since the process was started.

At any moment it does exactly one kind, so the seconds of all kinds add up to the age of the process. A kind that is
entered inside another one interrupts that one.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

# Kinds of work. Whatever is not marked as another kind before training is the start, and after it the report.
START = "start"
COMPILE = "compile"
TRAINING = "training"
INPUT = "input wait"
EVALUATION = "evaluation"
SAVE = "save"
REPORT = "report"
KINDS = (TRAINING, START, COMPILE, INPUT, EVALUATION, SAVE, REPORT)

# Pieces of work that a median is of: few enough to follow a run that changes, and enough for one outlier not to count.
_MOST_PIECES = 101
_FEWEST_PIECES = 5

# Field of /proc/self/stat after the command's name: the start time in ticks since boot.
_START_FIELD = 19

Item = TypeVar("Item")


def age() -> float:
    """Returns the seconds since this process was started; 0 on systems without /proc."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        started = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


@dataclass(frozen=True)
class Present:
    """What the main thread is doing.

    Attributes:
      kind: of work.
      began: when it began, in seconds of a clock that never goes back.
      seconds: for which it has been doing that.
      median: of the earlier pieces of work of this kind, in seconds; None: there were too few.
    """

    kind: str
    began: float
    seconds: float
    median: float | None


class Clock:
    """Seconds by kind of work. The main thread enters kinds; any thread may read."""

    def __init__(self, before: float = 0.0) -> None:
        """Starts in the kind `start`.

        Args:
          before: seconds of it that have passed already.
        """
        self._seconds = {START: before}
        self._entries: dict[str, int] = {}
        self._pieces: dict[str, deque[float]] = {}
        self._kinds = [START]
        self._since = time.monotonic()
        # When the present piece of work began, which is not interrupted by a reader.
        self._piece_since = self._since
        self._lock = threading.Lock()

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each kind so far."""
        with self._lock:
            self._advance()
            return dict(self._seconds)

    def present(self) -> Present:
        """Returns what the main thread is doing."""
        with self._lock:
            kind = self._kinds[-1]
            began = self._piece_since
            pieces = list(self._pieces.get(kind, ()))
        median = statistics.median(pieces) if len(pieces) >= _FEWEST_PIECES else None
        return Present(kind, began, time.monotonic() - began, median)

    def mean(self, kind: str) -> float:
        """Returns the mean seconds of one block of a kind; 0 if there was none."""
        return self.seconds().get(kind, 0.0) / max(1, self._entries.get(kind, 0))

    @contextmanager
    def doing(self, kind: str) -> Iterator[None]:
        """Counts the time of the block as a kind of work, except for what is marked as another kind inside it."""
        with self._lock:
            self._end_piece()
            self._kinds.append(kind)
            self._entries[kind] = self._entries.get(kind, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._end_piece()
                self._kinds.pop()

    def become(self, kind: str) -> None:
        """Counts the time from now on as a kind of work, where no other kind is marked."""
        with self._lock:
            self._advance()
            self._kinds[0] = kind

    def waiting(self, items: Iterable[Item], kind: str) -> Iterator[Item]:
        """Yields items, and counts the time that it takes to get each as a kind of work."""
        iterator = iter(items)
        while True:
            with self.doing(kind):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def _end_piece(self) -> None:
        self._advance()
        pieces = self._pieces.setdefault(self._kinds[-1], deque(maxlen=_MOST_PIECES))
        pieces.append(self._since - self._piece_since)
        self._piece_since = self._since

    def _advance(self) -> None:
        now = time.monotonic()
        kind = self._kinds[-1]
        self._seconds[kind] = self._seconds.get(kind, 0.0) + now - self._since
        self._since = now


# Process-wide, as the main thread is: the clock, and whether a run has used it.
_clock = [Clock()]
_is_used = [True]


def clock() -> Clock:
    """Returns the clock of the run that this process trains."""
    return _clock[0]


def begin_command() -> None:
    """Starts the clock of a command, which counts the time since the process was started."""
    _clock[0] = Clock(age())
    _is_used[0] = False


def begin_run() -> None:
    """Starts the clock of a run, unless its command has; a notebook and a sweep may train several in one process."""
    if _is_used[0]:
        _clock[0] = Clock()
    _is_used[0] = True
