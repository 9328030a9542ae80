"""Jobs handed to a cluster by submitit: Slurm's, or processes of this machine for a test."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from pathlib import Path

import submitit
from submitit import Executor

from runner.errors import ConfigError
from runner.sweep.jobs import Outcome
from runner.sweep.process import STOP_FILE, Command, run_to_end

_ASK_S = 2.0  # between questions to the cluster; the outcome file in the job's folder is looked for at once
_LOST_S = 10.0  # for a shared file system to show the outcome of a job that the cluster says has ended


def make_executor(cluster: str, folder: Path, timeout_s: float | None, parameters: Mapping[str, object]) -> Executor:
    """Returns a submitit executor.

    Args:
      cluster: `slurm` or `local`.
      folder: for its scripts and logs, on a file system that the nodes share.
      timeout_s: longest wall time of a job; the launcher ends a job at that time, the cluster a little later.
      parameters: of `submitit.AutoExecutor.update_parameters`, as `slurm_partition`.

    Raises:
      ConfigError: there is no such cluster, or a parameter that it does not know.
    """
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        limit = {} if timeout_s is None else {"timeout_min": math.ceil(timeout_s / 60) + 2}
        executor.update_parameters(**limit, **parameters)
    except (RuntimeError, NameError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"hydra.launcher: {text}; see submitit's AutoExecutor") from error
    return executor


class ClusterJob:
    """A job on a cluster; see `schedule.Running`. Its outcome comes back as a file in its folder."""

    def __init__(self, executor: Executor, command: Command) -> None:
        """Submits the job.

        Args:
          executor: submitit's.
          command: what a node runs.
        """
        self._folder = command.folder
        self._began = time.monotonic()
        self._asked = 0.0
        self._gone = 0.0
        self._job = executor.submit(run_to_end, command)

    @property
    def seconds(self) -> float:
        """Wall time since it was submitted, the queue included."""
        return time.monotonic() - self._began

    def poll(self) -> Outcome | None:
        """Returns how it ended; None while it waits or runs."""
        outcome = Outcome.read(self._folder)
        now = time.monotonic()
        if outcome is not None or now - self._asked < _ASK_S:
            return outcome
        self._asked = now
        if not self._job.done():
            return None
        self._gone = self._gone or now
        if now - self._gone < _LOST_S:
            return None
        return Outcome("killed", None, self.seconds, f"the cluster ended it: {self._job.state}")

    def stop(self) -> None:
        """Asks a running job to end cleanly, and takes a waiting one out of the queue."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / STOP_FILE).touch()
        if self._job.state not in ("RUNNING", "UNKNOWN"):
            self.kill()

    def kill(self) -> None:
        """Cancels the job."""
        with contextlib.suppress(Exception):  # it may be gone
            self._job.cancel()
