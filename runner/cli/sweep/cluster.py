"""Jobs on a cluster by submitit: Slurm's, or processes of this machine for a test."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from pathlib import Path

import submitit
from submitit import Executor

from runner.cli.sweep.jobs import Outcome
from runner.cli.sweep.process import (
    STOP_FILE,
    Command,
    run_to_end,
)
from runner.errors import ConfigError, in_one_line

# Between two questions to the cluster, which may run a command of Slurm. Every poll reads the job's outcome file.
_ASK_S = 2.0
# For a shared file system to show the outcome of a job that has ended for the cluster.
_OUTCOME_S = 10.0
# The cluster's limit is this much above the launcher's, which ends a job cleanly.
_MARGIN_MINUTES = 2


def make_executor(cluster: str, folder: Path, timeout_s: float | None, parameters: Mapping[str, object]) -> Executor:
    """Returns a submitit executor.

    Args:
      cluster: `slurm` or `local`.
      folder: for its scripts and logs, on a file system that the nodes share.
      timeout_s: longest wall time of a job; the launcher ends a job at that time, the cluster a little later.
      parameters: the parameters of `submitit.AutoExecutor.update_parameters`, as `slurm_partition`.

    Raises:
      ConfigError: there is no such cluster, or submitit does not know a parameter.
    """
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        if timeout_s is None:
            executor.update_parameters(**parameters)
        else:
            minutes = math.ceil(timeout_s / 60) + _MARGIN_MINUTES
            executor.update_parameters(**{"timeout_min": minutes, **parameters})
    except (RuntimeError, NameError, ValueError) as error:
        raise ConfigError(f"hydra.launcher: {in_one_line(str(error))}; see submitit's AutoExecutor") from error
    return executor


class ClusterJob:
    """A job on a cluster; see `schedule.Running`. Its outcome comes back as a file in its folder."""

    def __init__(self, executor: Executor, command: Command) -> None:
        """Submits the job.

        Args:
          executor: the executor of submitit.
          command: to run on a node.
        """
        self._folder = command.folder
        self._submitted_at = time.monotonic()
        self._asked_at = 0.0
        self._ended_at = 0.0  # when the cluster first said so
        self._job = executor.submit(run_to_end, command)

    @property
    def seconds(self) -> float:
        """Wall time since it was submitted, the queue included."""
        return time.monotonic() - self._submitted_at

    def poll(self) -> Outcome | None:
        """Returns how it ended; None while it waits or runs."""
        outcome = Outcome.read(self._folder)
        now = time.monotonic()
        if outcome is not None or now - self._asked_at < _ASK_S:
            return outcome
        self._asked_at = now
        if not self._job.done():
            return None
        if not self._ended_at:
            self._ended_at = now
        if now - self._ended_at < _OUTCOME_S:
            return None
        return Outcome("killed", None, self.seconds, f"the cluster ended it: {self._job.state}")

    def stop(self) -> None:
        """Asks a running job to end cleanly, and takes a waiting one out of the queue."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / STOP_FILE).touch()
        may_run = self._job.state in ("RUNNING", "UNKNOWN")
        if not may_run:
            self.kill()

    def kill(self) -> None:
        """Cancels the job."""
        with contextlib.suppress(Exception):  # it may have ended
            self._job.cancel()
