"""A Slurm job that ends before its run does: it asks to be queued again, and starts again with the same run.

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
from runner.processes import begin
from runner.processes.team import current

_KEY = "cluster.requeue"
_AHEAD = (signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM))  # of a job's end; Ctrl-C is a person's
_ANSWER_S = 20.0  # from SIGTERM to SIGKILL Slurm waits for 30 s, unless its KillWait says otherwise


@dataclass(frozen=True)
class Job:
    """A job of Slurm's.

    Attributes:
      id: its number, and the cluster's name; the same when it starts again.
      name: by which Slurm's commands know it; the number of an array's task may stand for the whole array.
      restarts: how often it has been queued again.
    """

    id: str
    name: str
    restarts: int

    def note(self, command: Sequence[str]) -> dict[str, Any]:
        """Returns what a run's record says of the job that it runs in.

        Args:
          command: the overrides as typed; a job's script may hold several commands.
        """
        digest = hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()
        return {"id": self.id, "restarts": self.restarts, "command": digest}

    def has_ended(self, note: Mapping[str, Any] | None) -> bool:
        """Tells whether a note is of an earlier start of this job, all of whose processes are gone."""
        return note is not None and note["id"] == self.id and int(note["restarts"]) < self.restarts

    def began(self, note: Mapping[str, Any] | None, command: Sequence[str]) -> bool:
        """Tells whether a note is of the same command in an earlier start of this job."""
        return self.has_ended(note) and note is not None and note["command"] == self.note(command)["command"]


def job(environ: Mapping[str, str] = os.environ) -> Job | None:
    """Returns the job that this process runs in; None where that is none of Slurm's."""
    number = environ.get("SLURM_JOB_ID", "")
    if not number.isdigit():
        return None
    array = environ.get("SLURM_ARRAY_JOB_ID")
    task = environ.get("SLURM_ARRAY_TASK_ID")
    name = f"{array}_{task}" if array and task else number
    restarts = environ.get("SLURM_RESTART_COUNT", "")
    return Job(f"{environ.get('SLURM_CLUSTER_NAME', '')}:{name}", name, int(restarts) if restarts.isdigit() else 0)


def check(one: Job) -> None:
    """Checks that Slurm would queue a job again, as far as it answers.

    Raises:
      ConfigError: it would not.
    """
    told = _shown(one)
    if told.get("BatchFlag", "1") == "0":
        raise invalid(
            _KEY, True, problem=f"a script's job, and job {one.name} is an interactive one", fix="submit it by sbatch"
        )
    if told.get("Requeue", "1") == "0":
        raise invalid(
            _KEY, True, problem=f"a job that may start again, and job {one.name} may not", fix="sbatch --requeue"
        )


@contextmanager
def at_end(*, wanted: bool) -> Iterator[None]:
    """Asks that this job is queued again, by process 0, where the block ends by a signal that announces a job's end.

    Args:
      wanted: `cluster.requeue`.
    """
    found = job() if wanted and current().is_first else None
    if found is None:
        yield
        return
    taken_back = begin.on_end(lambda _, signum: _ask(found, signum))
    try:
        yield
    except BaseException as error:
        begin.begin_leaving()
        _ask(found, interruption(error))
        raise
    finally:
        taken_back()


def _ask(one: Job, signum: int | None) -> None:
    """Asks, and says what came of it."""
    if signum not in _AHEAD:
        return
    told = _shown(one)
    state = told.get("JobState", "unknown")
    reason = told.get("Reason", "")
    if int(told.get("Restarts", "0")) > one.restarts:  # as it does by itself where it preempts a job
        print(f"job {one.name} is queued again, and goes on with this run", flush=True)
    elif state == "RUNNING" or reason == "TimeLimit":
        failure = _scontrol("requeue", one.name)[1]
        said = f"is not queued again: {failure}" if failure else "is queued again, and goes on with this run"
        print(f"job {one.name} {said}", flush=True)
    else:  # a person has canceled it
        print(f"job {one.name} is not queued again: its state is {state}", flush=True)


def _shown(one: Job) -> dict[str, str]:
    """Returns what Slurm says of a job; nothing where it does not answer."""
    line = _scontrol("show", "job", "-o", one.name)[0].partition("\n")[0]
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def _scontrol(*arguments: str) -> tuple[str, str]:
    """Returns what scontrol prints, and in words why it failed."""
    # Slurm signals all that a job runs, several times, and a program inherits what is blocked where it is started.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"scontrol: {error}"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    failure = " ".join(done.stderr.split()) or f"scontrol ended with {done.returncode}"
    return done.stdout, failure if done.returncode else ""
