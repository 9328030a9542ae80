"""How long the main thread of this process has done each kind of work since the process was started.

At any moment it does exactly one kind, so the seconds of all kinds add up to the age of the process. A kind that is
entered inside another one interrupts that one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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


class Clock:
    """Seconds by kind of work. The main thread enters kinds; any thread may read."""

    def __init__(self, before: float = 0.0) -> None:
        """Starts in the kind `start`.

        Args:
          before: seconds of it that have passed already.
        """
        self._seconds = {START: before}
        self._entries: dict[str, int] = {}
        self._kinds = [START]
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each kind so far."""
        with self._lock:
            self._advance()
            return dict(self._seconds)

    def mean(self, kind: str) -> float:
        """Returns the mean seconds of one block of a kind; 0 if there was none."""
        return self.seconds().get(kind, 0.0) / max(1, self._entries.get(kind, 0))

    @contextmanager
    def doing(self, kind: str) -> Iterator[None]:
        """Counts the time of the block as a kind of work, except for what is marked as another kind inside it."""
        with self._lock:
            self._advance()
            self._kinds.append(kind)
            self._entries[kind] = self._entries.get(kind, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._advance()
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
