"""Display of a sweep's jobs: one live line per running job on a terminal, lines at start and end in a log.

Each job prints to its `job.log`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rich.console import Group
from rich.live import Live
from rich.text import Text

from runner.cli.sweep.jobs import (
    Job,
    Outcome,
)
from runner.cli.sweep.schedule import Watcher
from runner.host.console import Console, clean_redirected

_WARNING = "warning: "
_REFRESHES_PER_SECOND = 4  # the lines count seconds; a redraw of many lines is visible on a slow terminal


class Judge(Watcher, Protocol):
    """A watcher that knows the results of jobs."""

    def result(self, job: Job, outcome: Outcome) -> str:
        """Returns the result of a job that has ended, in a few words; empty where it has none."""


@dataclass
class _Line:
    job: Job
    started_at: float
    text: str  # what the job printed last


class JobsDisplay:
    """Shows jobs as they run; a `schedule.Watcher` around the one that decides."""

    def __init__(self, judge: Judge, console: Console | None = None) -> None:
        """Shows nothing yet.

        Args:
          judge: decides which job stops, and gets the outcomes.
          console: to print to; None: standard output.
        """
        self._judge = judge
        self._console = console or Console()
        self._running: dict[int, _Line] = {}
        self._warned: set[str] = set()
        # Jobs print in threads of their own, and the live display draws in another one.
        self._lock = threading.Lock()
        self._live = Live(
            console=self._console,
            get_renderable=self._lines,
            refresh_per_second=_REFRESHES_PER_SECOND,
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
          how: what happened to it, as `submitted`.
        """
        with self._lock:
            self._running[job.number] = _Line(job, time.monotonic(), how)
        if not self._console.is_terminal:
            self._print(f"{_name(job)}: {how}")

    def said(self, job: Job, text: str) -> None:
        """Takes what a job printed, a line or the beginning of one. A warning of several jobs is shown once."""
        text = text.strip()
        is_message = text[:1].isalnum()  # else it is empty, or a part of a table
        if not is_message:
            return
        with self._lock:
            if job.number in self._running:
                self._running[job.number].text = text
            is_new_warning = text.startswith(_WARNING) and text not in self._warned
            if is_new_warning:
                self._warned.add(text)
        if is_new_warning:
            self._print(f"{_name(job)}: {text}")

    def should_stop(self, job: Job) -> bool:
        """Asks the judge."""
        return self._judge.should_stop(job)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Passes the outcome on to the judge, and shows the result."""
        self._judge.ended(job, outcome)
        with self._lock:
            self._running.pop(job.number, None)
        parts = [f"{outcome.status} after {outcome.seconds:.0f} s", self._judge.result(job, outcome), outcome.note]
        self._print(f"{_name(job)}: {', '.join(part for part in parts if part)}")

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _lines(self) -> Group:
        """Returns one line per running job: its name, its time, what it printed last."""
        now = time.monotonic()
        with self._lock:
            rows = [(_name(line.job), now - line.started_at, line.text) for line in self._running.values()]
        longest_name = max((len(name) for name, _, _ in rows), default=0)
        width = min(longest_name, self._console.width // 2)
        lines = []
        for name, seconds, text in rows:
            if len(name) > width:
                name = f"{name[: width - 1]}…"
            lines.append(Text(f"{name:{width}}  {seconds:3.0f} s  {text}", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)


def _name(job: Job) -> str:
    return f"job {job.number}, {job.name}" if job.varied else f"job {job.number}"
