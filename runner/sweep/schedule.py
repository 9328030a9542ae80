"""Runs jobs, so many at once, until all have ended or a signal comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from runner.host.signals import StopRequest
from runner.sweep.jobs import Job, JobStatus, Outcome

_POLL_S = 0.02
GRACE_S = 45.0  # for a job to store its last points; its tracker gives up on an absent store after 30


class Running(Protocol):
    """A job under way."""

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
    """Is told of jobs as they go on."""

    def should_stop(self, job: Job) -> bool:
        """Returns whether a running job is not worth its time."""

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Takes a job's outcome."""


@dataclass
class _Slot:
    job: Job
    running: Running
    verdict: JobStatus | None = None  # why it was asked to end
    note: str = ""
    asked: float = 0.0

    def end(self, verdict: JobStatus, note: str) -> None:
        """Asks the job to end, and kills it when it has not done so in time."""
        if self.verdict is None:
            self.verdict = verdict
            self.note = note
            self.asked = time.monotonic()
            self.running.stop()
        elif time.monotonic() - self.asked > GRACE_S:
            self.running.kill()

    def outcome(self) -> Outcome | None:
        """Returns how it ended, in the words of who ended it."""
        outcome = self.running.poll()
        if outcome is not None and self.verdict is not None and outcome.status != "passed":
            return replace(outcome, status=self.verdict, note=self.note)
        return outcome


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
      jobs: is asked for the next one only when there is room, so a search may choose it late.
      start: starts a job.
      watcher: told of each outcome.
      stop: asked for signals.
      max_parallel: jobs at once.
      timeout_s: longest wall time of a job.

    Raises:
      Interrupted: a signal came; the running jobs were ended cleanly, the rest did not start.
    """
    slots: list[_Slot] = []
    more = True
    try:
        with stop.deferring():
            while more or slots:
                while more and not stop.requested and len(slots) < max_parallel:
                    job = next(jobs, None)
                    more = job is not None
                    if job is not None:
                        slots.append(_Slot(job, start(job)))
                more = more and not stop.requested
                for slot in slots:
                    _look(slot, watcher, stop.signum, timeout_s)
                slots = [slot for slot in slots if not _collect(slot, watcher)]
                time.sleep(_POLL_S)
    finally:
        for slot in slots:  # an error of the launcher's own
            slot.running.kill()
    stop.raise_if_requested()


def _look(slot: _Slot, watcher: Watcher, signum: int | None, timeout_s: float | None) -> None:
    if signum is not None:
        slot.end("killed", f"the sweep was ended by signal {signum}")
    elif timeout_s is not None and slot.running.seconds > timeout_s:
        slot.end("timeout", f"took longer than hydra.launcher.timeout={timeout_s:g} seconds")
    elif watcher.should_stop(slot.job):
        slot.end("pruned", "its values so far were behind those of other trials")


def _collect(slot: _Slot, watcher: Watcher) -> bool:
    outcome = slot.outcome()
    if outcome is not None:
        outcome.write(slot.job.folder)
        watcher.ended(slot.job, outcome)
    return outcome is not None
