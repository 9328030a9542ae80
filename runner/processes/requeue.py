"""Requeued Slurm jobs: a job that ends before its run asks to be queued again, and then resumes the run.

Commands and variables: scontrol(1), and sbatch(1) under `--requeue`, `--signal` and SLURM_RESTART_COUNT.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from runner.errors import invalid
from runner.host.signals import SIGNALS, interruption
from runner.processes import lifecycle
from runner.processes.team import current

_KEY = "cluster.requeue"
# Signals that announce the end of a job. Ctrl-C is the user's, who does not want the run to continue.
_ANNOUNCING = (signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM))
# Seconds for an answer of scontrol. Slurm waits 30 s from SIGTERM to SIGKILL (its KillWait), and the run also needs
# some of them to save.
_ANSWER_S = 20.0


@dataclass(frozen=True)
class Job:
    """A Slurm job.

    Attributes:
      id: name of the cluster and number of the job; unchanged when it starts again.
      name: its name in Slurm's commands, where the number of an array's task may mean the whole array.
      restarts: number of times that it has been requeued.
    """

    id: str
    name: str
    restarts: int

    def note(self, command: Sequence[str]) -> dict[str, Any]:
        """Returns the note about this job in a run's record.

        Args:
          command: the overrides as typed; the script of a job may have several commands.
        """
        digest = hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()
        return {"id": self.id, "restarts": self.restarts, "command": digest}

    def has_ended(self, note: Mapping[str, Any] | None) -> bool:
        """Returns whether a note is of an earlier start of this job, whose processes have all ended."""
        return note is not None and note["id"] == self.id and int(note["restarts"]) < self.restarts

    def began(self, note: Mapping[str, Any] | None, command: Sequence[str]) -> bool:
        """Returns whether a note is of the same command in an earlier start of this job."""
        return self.has_ended(note) and note is not None and note["command"] == self.note(command)["command"]


def job(environ: Mapping[str, str] = os.environ) -> Job | None:
    """Returns the Slurm job that this process runs in; None: it runs in none."""
    number = environ.get("SLURM_JOB_ID", "")
    if not number.isdigit():
        return None
    array = environ.get("SLURM_ARRAY_JOB_ID")
    task = environ.get("SLURM_ARRAY_TASK_ID")
    name = number
    if array and task:
        name = f"{array}_{task}"
    cluster = environ.get("SLURM_CLUSTER_NAME", "")
    restarts = environ.get("SLURM_RESTART_COUNT", "")
    return Job(f"{cluster}:{name}", name, int(restarts) if restarts.isdigit() else 0)


def check(a_job: Job) -> None:
    """Checks that Slurm would requeue a job; passes if Slurm does not answer.

    Raises:
      ConfigError: it would not.
    """
    record = _record(a_job)
    if record.get("BatchFlag", "1") == "0":
        raise invalid(
            _KEY,
            True,
            problem=f"needs a batch job, but job {a_job.name} is interactive",
            fix="submit a script with sbatch",
        )
    if record.get("Requeue", "1") == "0":
        raise invalid(
            _KEY,
            True,
            problem=f"needs a job that may be requeued, but job {a_job.name} may not",
            fix="submit it with sbatch --requeue",
        )


@contextmanager
def at_end(*, wanted: bool) -> Iterator[None]:
    """Has process 0 requeue this job if the block ends by a signal that announces the end of the job.

    Args:
      wanted: value of `cluster.requeue`.
    """
    own_job = job() if wanted and current().is_first else None
    if own_job is None:
        yield
        return
    unregister = lifecycle.on_end(lambda _, signum: _requeue(own_job, signum))
    try:
        yield
    except BaseException as error:
        lifecycle.begin_leaving()
        _requeue(own_job, interruption(error))
        raise
    finally:
        unregister()


def _requeue(a_job: Job, signum: int | None) -> None:
    """Requeues a job, and prints the result."""
    if signum not in _ANNOUNCING:
        return
    record = _record(a_job)
    state = record.get("JobState", "unknown")
    reason = record.get("Reason", "")
    failure = ""
    if int(record.get("Restarts", "0")) > a_job.restarts:
        # Slurm itself requeues a job that it preempts.
        pass
    elif state == "RUNNING" or reason == "TimeLimit":
        failure = _scontrol("requeue", a_job.name)[1]
    else:
        # The user has canceled it.
        failure = f"its state is {state}"
    if failure:
        print(f"job {a_job.name} was not requeued: {failure}", flush=True)
    else:
        print(f"job {a_job.name} was requeued and will resume this run", flush=True)


def _record(a_job: Job) -> dict[str, str]:
    """Returns Slurm's record of a job; empty if it does not answer."""
    line = _scontrol("show", "job", "-o", a_job.name)[0].partition("\n")[0]
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def _scontrol(*arguments: str) -> tuple[str, str]:
    """Returns the output of scontrol, and why it failed, or an empty string."""
    # Slurm signals all processes of a job several times. A program inherits the signals that are blocked when it
    # starts.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"scontrol: {error}"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    failure = " ".join(done.stderr.split()) or f"scontrol ended with {done.returncode}"
    return done.stdout, failure if done.returncode else ""
