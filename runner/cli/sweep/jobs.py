"""Jobs of a sweep and their outcomes."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from runner.config.names import varied_name
from runner.errors import EXIT_DONE, EXIT_REFUSED
from runner.host.signals import SIGNALS

JobStatus = Literal["passed", "failed", "refused", "killed", "timeout", "pruned", "skipped", "not run"]
GOOD: frozenset[str] = frozenset({"passed", "skipped", "pruned"})
OUTCOME_FILE = "job.json"


def jobs_text(count: int) -> str:
    """Returns a number of jobs in words."""
    return "1 job" if count == 1 else f"{count} jobs"


@dataclass(frozen=True)
class Job:
    """One job of a sweep.

    Attributes:
      number: its number in the sweep, from 0.
      overrides: its own command line, without what concerns Hydra or the sweep.
      folder: where it writes.
      varied: the keys that the sweep varies, with this job's values.
    """

    number: int
    overrides: tuple[str, ...]
    folder: Path
    varied: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The job's values of what the sweep varies, as `batch_size=64,mesh=batch8`."""
        return varied_name(self.varied) or f"job {self.number}"


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
      status: in a word.
      exit_code: the exit code of its process; None where none ran to its end.
      seconds: wall time of the process.
      note: why it did not pass, in a line.
    """

    status: JobStatus
    exit_code: int | None = None
    seconds: float = 0.0
    note: str = ""

    def write(self, folder: Path) -> None:
        """Writes the outcome into the job's folder, where a sweep finds it whatever machine the job ran on."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / OUTCOME_FILE).write_text(json.dumps(asdict(self)) + "\n")

    @staticmethod
    def read(folder: Path) -> Outcome | None:
        """Returns the outcome in a job's folder; None where the job has not ended, or its file is half written."""
        try:
            return Outcome(**json.loads((folder / OUTCOME_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None


@dataclass
class Ledger:
    """The jobs of a sweep in order, with the outcomes known so far."""

    jobs: list[Job] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def add(self, job: Job, outcome: Outcome | None = None) -> None:
        """Adds a job; one that will not run with its outcome."""
        self.jobs.append(job)
        if outcome is not None:
            self.outcomes[job.number] = outcome

    def rows(self) -> list[tuple[Job, Outcome]]:
        """Returns every job with its outcome, also those that did not run."""
        return [(job, self.outcome(job)) for job in self.jobs]

    def outcome(self, job: Job) -> Outcome:
        """Returns a job's outcome: the one added here, else the one in its folder, else that it did not run."""
        return self.outcomes.get(job.number) or Outcome.read(job.folder) or Outcome("not run")


def outcome_of(exit_code: int, seconds: float, error: str) -> Outcome:
    """Returns the outcome of a process.

    Args:
      exit_code: the process's; a negative one is the number of the signal that ended it.
      seconds: its wall time.
      error: the message that it printed; empty: none.

    >>> outcome_of(-9, 1.0, "").note
    'ended by signal 9'
    """
    if exit_code == EXIT_DONE:
        return Outcome("passed", exit_code, seconds)
    if exit_code == EXIT_REFUSED:
        return Outcome("refused", exit_code, seconds, error)
    # A command that handles a signal exits with 128 + its number, as a shell reports it.
    signum = -exit_code if exit_code < 0 else exit_code - 128
    if signum in (signal.SIGKILL, *SIGNALS):
        return Outcome("killed", exit_code, seconds, f"ended by signal {signum}")
    if signum > 0:
        return Outcome("failed", exit_code, seconds, f"the process was aborted by signal {signum}")
    return Outcome("failed", exit_code, seconds, error or f"exit code {exit_code}")
