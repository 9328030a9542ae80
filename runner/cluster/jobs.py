"""Jobs of a sweep: processes of their own, so many at a time, until all have ended or a signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner.cluster.accelerators import VISIBLE_GPUS
from runner.cluster.launch import kill_group, own_variables
from runner.cluster.membership import varied_name
from runner.cluster.timeouts import GRACE_S
from runner.errors import EXIT_DONE, EXIT_REFUSED
from runner.host.signals import SIGNALS, StopRequest, described, signal_of

JobStatus = Literal["passed", "failed", "refused", "killed", "skipped", "not run"]
GOOD: frozenset[str] = frozenset({"passed", "skipped"})
LOG_FILE = "job.log"
_ERROR = "error: "  # how a command's one line of error begins
_TAIL_BYTES = 1 << 16  # of a log, in which the error is the last line or nearly
# Between two looks at the jobs: short beside a job's seconds, and 50 looks per second cost no measurable CPU time.
_POLL_S = 0.02


def jobs_text(count: int) -> str:
    """Returns a number of jobs in words."""
    return "1 job" if count == 1 else f"{count} jobs"


@dataclass(frozen=True)
class Job:
    """One job of a sweep, numbered from 0: its overrides, its values of what varies, and how many GPUs it takes."""

    number: int
    overrides: tuple[str, ...]
    folder: Path
    varied: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0

    @property
    def name(self) -> str:
        """The job's values of what the sweep varies, as `batch_size=64,mesh=batch8`."""
        return varied_name(self.varied) or f"job {self.number}"

    def __str__(self) -> str:
        return f"job {self.number}, {self.name}" if self.varied else self.name


@dataclass(frozen=True)
class Outcome:
    """How a job ended, its wall time, and why it did not pass."""

    status: JobStatus
    seconds: float = 0.0
    note: str = ""


def outcome_of(exit_code: int, seconds: float, error: str) -> Outcome:
    """Returns the outcome of a process by its exit code and the error that it printed."""
    if exit_code == EXIT_DONE:
        return Outcome("passed", seconds)
    if exit_code == EXIT_REFUSED:
        return Outcome("refused", seconds, error)
    if signal_of(exit_code) in (signal.SIGKILL, *SIGNALS):
        return Outcome("killed", seconds, described(exit_code))
    return Outcome("failed", seconds, error or described(exit_code))


class RunningJob:
    """A job's process, whose output goes to a log in the job's folder."""

    def __init__(
        self, job: Job, command: Sequence[str], environment: Mapping[str, str], gpus: Sequence[str] = ()
    ) -> None:
        """Starts it with variables in addition to those of this process, and with these GPUs only; empty: as this."""
        self.job = job
        self.gpus = gpus
        if gpus:
            environment = {**environment, VISIBLE_GPUS: ",".join(gpus)}
        self._log = job.folder / LOG_FILE
        self._started_at = time.monotonic()
        # When it was asked to end, and why.
        self._asked_at = 0.0
        self._note = ""
        job.folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **own_variables(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # So that a terminal's Ctrl-C reaches the sweep alone, which ends its jobs one by one.
                start_new_session=True,
            )

    def end(self, note: str) -> None:
        """Asks the job to end between two steps, which records it as KILLED; kills it if it has not ended in time."""
        if not self._note:
            self._note = note
            self._asked_at = time.monotonic()
            self.process.send_signal(signal.SIGTERM)
        elif time.monotonic() - self._asked_at > GRACE_S:
            kill_group(self.process)

    def outcome(self) -> Outcome | None:
        """Returns how it ended, with the sweep's reason if that ended it; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        outcome = outcome_of(code, time.monotonic() - self._started_at, self._error())
        if not self._note or outcome.status == "passed":
            return outcome
        return Outcome("killed", outcome.seconds, self._note)

    def _error(self) -> str:
        """Returns the last error in the log; empty: there is none."""
        error = ""
        with suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            for line in log.read().decode(errors="replace").splitlines():
                if line.startswith(_ERROR):
                    error = line.removeprefix(_ERROR).strip()
        return error


def run_jobs(
    jobs: Iterator[Job],
    start: Callable[[Job, Sequence[str]], RunningJob],
    ended: Callable[[Job, Outcome], None],
    stop: StopRequest,
    goes_on: Callable[[], bool] = lambda: True,
    *,
    max_parallel: int,
    gpus: Sequence[str] = (),
) -> None:
    """Runs every job to its end, unless `goes_on` returns that no other may start.

    `jobs` is asked for the next one only when there is room, so that a search may choose it late. `gpus` are entries
    of CUDA_VISIBLE_DEVICES: a job waits until as many as it computes on are free. Without any, it does not.

    Raises:
      Interrupted: a signal came; the running jobs were ended cleanly, the rest did not start.
    """
    running: list[RunningJob] = []
    free = list(gpus)
    waiting: Job | None = None
    has_more = True
    try:
        with stop.deferring():
            while has_more or running:
                while has_more and not stop.requested and len(running) < max_parallel:
                    waiting = waiting or next(jobs, None)
                    if waiting is None or not goes_on():
                        has_more = False
                        break
                    needed = min(waiting.gpus, len(gpus))
                    if needed > len(free):
                        break
                    running.append(start(waiting, free[:needed]))
                    free = free[needed:]
                    waiting = None
                for one in running[:]:
                    if stop.requested:
                        one.end(f"the sweep was ended by signal {stop.signum}")
                    outcome = one.outcome()
                    if outcome is not None:
                        running.remove(one)
                        free = sorted([*free, *one.gpus], key=gpus.index)
                        ended(one.job, outcome)
                has_more = has_more and not stop.requested
                time.sleep(_POLL_S)
    finally:
        for one in running:  # left only by an error of the sweep itself
            kill_group(one.process)
    stop.raise_if_requested()
