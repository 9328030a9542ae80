"""What a person sees of a sweep's jobs: on a terminal a live line each, and in a log their beginnings and ends.

What a job itself prints is in its `job.log`.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Protocol

from rich.console import Group
from rich.live import Live
from rich.text import Text

from runner.host.console import Console, clean_redirected
from runner.sweep.jobs import Job, Outcome
from runner.sweep.schedule import Watcher

_WARNING = "warning: "
_REDRAWN_A_SECOND = 4


class Judge(Watcher, Protocol):
    """A watcher that knows what a job came to."""

    def result(self, job: Job, outcome: Outcome) -> str:
        """Returns what came out of a job that has ended, in a few words; empty where nothing is known."""


class JobsDisplay:
    """Shows jobs as they go on; a `schedule.Watcher` around the one that decides."""

    def __init__(self, judge: Judge, console: Console | None = None) -> None:
        """Shows nothing yet.

        Args:
          judge: decides, and is told.
          console: to print to; null: standard output.
        """
        self._judge = judge
        self._console = console or Console()
        self._running: dict[int, tuple[Job, float, str]] = {}  # job, when it began, what it said last
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._live = Live(
            console=self._console,
            get_renderable=self._lines,
            refresh_per_second=_REDRAWN_A_SECOND,
            transient=True,
            auto_refresh=self._console.is_terminal,
        )

    def __enter__(self) -> JobsDisplay:
        if self._console.is_terminal:
            self._live.start()
            clean_redirected()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def started(self, job: Job, how: str = "started") -> None:
        """Shows a job from now on.

        Args:
          job: that runs.
          how: it was begun, in a word.
        """
        with self._lock:
            self._running[job.number] = (job, time.monotonic(), how)
        if not self._console.is_terminal:
            self._print(f"{_named(job)}: {how}")

    def said(self, job: Job, text: str) -> None:
        """Takes what a job printed: a line, or as much of one as there is. A warning is shown once of all jobs."""
        text = text.strip()
        if not text[:1].isalnum():  # nothing, or part of a table
            return
        with self._lock:
            if job.number in self._running:
                self._running[job.number] = (*self._running[job.number][:2], text)
            fresh = text.startswith(_WARNING) and text not in self._warned
            self._warned |= {text} if fresh else set()
        if fresh:
            self._print(f"{_named(job)}: {text}")

    def should_stop(self, job: Job) -> bool:
        """Asks the judge."""
        return self._judge.should_stop(job)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Tells the judge, and shows the result."""
        self._judge.ended(job, outcome)
        with self._lock:
            self._running.pop(job.number, None)
        parts = [f"{outcome.status} after {outcome.seconds:.0f} s", self._judge.result(job, outcome), outcome.note]
        self._print(f"{_named(job)}: {', '.join(part for part in parts if part)}")

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _lines(self) -> Group:
        """Returns a line for each job that runs: its name, its time, what it said last."""
        with self._lock:
            rows = [(_named(job), time.monotonic() - began, text) for job, began, text in self._running.values()]
        most = min(max((len(name) for name, *_ in rows), default=0), self._console.width // 2)
        lines = [f"{_cut(name, most):{most}}  {seconds:3.0f} s  {text}" for name, seconds, text in rows]
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _named(job: Job) -> str:
    return f"job {job.number}, {job.name}" if job.varied else f"job {job.number}"
