"""Scheduler of a sweep's jobs: so many at a time, until all have ended or a signal comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from runner.cli.sweep.jobs import (
    Job,
    JobStatus,
    Outcome,
)
from runner.host.signals import StopRequest

# Between two looks at the jobs: short beside a job's seconds, and 50 looks per second cost no measurable CPU time.
_POLL_S = 0.02
# For a job to store its last points; its tracker gives up on an unavailable server after 30 s.
GRACE_S = 45.0


class Running(Protocol):
    """A started job."""

    @property
    def seconds(self) -> float:
        """Wall time since the start."""

    def poll(self) -> Outcome | None:
        """Returns how it ended; None while it runs."""

    def stop(self) -> None:
        """Asks it to end."""

    def kill(self) -> None:
        """Ends it."""


class Watcher(Protocol):
    """Follows jobs as they run."""

    def should_stop(self, job: Job) -> bool:
        """Returns whether a running job is not worth its time."""

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Takes a job's outcome."""


@dataclass
class _Slot:
    """A job that runs, and why it was asked to end, if it was."""

    job: Job
    running: Running
    reason: JobStatus | None = None
    note: str = ""
    stopped_at: float = 0.0

    def end(self, reason: JobStatus, note: str) -> None:
        """Asks the job to end, and kills it if it has not ended in time."""
        if self.reason is None:
            self.reason = reason
            self.note = note
            self.stopped_at = time.monotonic()
            self.running.stop()
        elif time.monotonic() - self.stopped_at > GRACE_S:
            self.running.kill()

    def outcome(self) -> Outcome | None:
        """Returns how it ended, with the reason of the scheduler if that ended it; None while it runs."""
        outcome = self.running.poll()
        if outcome is None or self.reason is None or outcome.status == "passed":
            return outcome
        return replace(outcome, status=self.reason, note=self.note)


def run_jobs(
    jobs: Iterator[Job],
    start: Callable[[Job], Running],
    watcher: Watcher,
    stop: StopRequest,
    *,
    max_parallel: int,
    timeout_s: float | None,
) -> None:
    """Runs every job to its end; one that fails does not stop the others.

    Args:
      jobs: is asked for the next one only when there is room, so that a search may choose it late.
      start: starts a job.
      watcher: gets each outcome.
      stop: notes signals.
      max_parallel: jobs at a time.
      timeout_s: longest wall time of a job; None: no limit.

    Raises:
      Interrupted: a signal came; the running jobs were ended cleanly, the rest did not start.
    """
    slots: list[_Slot] = []
    has_more = True
    try:
        with stop.deferring():
            while has_more or slots:
                while has_more and not stop.requested and len(slots) < max_parallel:
                    job = next(jobs, None)
                    if job is None:
                        has_more = False
                    else:
                        slots.append(_Slot(job, start(job)))
                if stop.requested:
                    has_more = False
                for slot in slots:
                    _end_if_due(slot, watcher, stop.signum, timeout_s)
                slots = [slot for slot in slots if not _collect(slot, watcher)]
                time.sleep(_POLL_S)
    finally:
        for slot in slots:  # left only by an error of the launcher itself
            slot.running.kill()
    stop.raise_if_requested()


def _end_if_due(slot: _Slot, watcher: Watcher, signum: int | None, timeout_s: float | None) -> None:
    if signum is not None:
        slot.end("killed", f"the sweep was ended by signal {signum}")
    elif timeout_s is not None and slot.running.seconds > timeout_s:
        slot.end("timeout", f"took longer than hydra.launcher.timeout={timeout_s:g} seconds")
    elif watcher.should_stop(slot.job):
        slot.end("pruned", "its values so far were behind those of other trials")


def _collect(slot: _Slot, watcher: Watcher) -> bool:
    """Passes on the outcome of a job that has ended; returns whether it has."""
    outcome = slot.outcome()
    if outcome is None:
        return False
    outcome.write(slot.job.folder)
    watcher.ended(slot.job, outcome)
    return True
