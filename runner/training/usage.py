"""CPU, memory and GPU use of a run's processes, logged by process 0 under the index of each process."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psutil

from runner.host import proc
from runner.host.gpus import Gpus
from runner.processes.team import Team
from runner.training.recorder import LogPoints

CPU = "cpu_percent"
MEMORY = "memory_mb"

# Seconds between two measurements of a process.
_EVERY_S = 5.0

# A short run gets a curve too: its first measurements are closer together.
_FIRST = 10
_FIRST_EVERY_S = 1.0


class Usage:
    """Measures nothing."""

    def sample(self, step: int) -> None:
        """Measures this process if a measurement is due; called after every device call.

        Args:
          step: training steps done.
        """

    def finish(self, step: int) -> None:
        """Logs what has not been logged, at the last step."""


class ProcessUsage(Usage):
    """Measures this process every few seconds, and reports to process 0, which logs the new values of all.

    The points are `system/process-<i>/cpu_percent`, of one core, since the last measurement (the first: since the
    process started), and `system/process-<i>/memory_mb`, resident; for GPUs see `runner.host.gpus`. MLflow shows
    metrics with such names as system metrics.
    """

    def __init__(self, team: Team, log: LogPoints, every_s: float = _EVERY_S, gpus: Gpus | None = None) -> None:
        """Starts to measure.

        Args:
          team: the processes.
          log: process 0's; takes (step, points).
          every_s: seconds between two measurements of a process.
          gpus: of the mesh; None: the mesh has none.
        """
        self._team = team
        self._log = log
        self._every_s = every_s
        self._due = 0.0
        self._process = psutil.Process(proc.own_pid())
        self._measured = 0
        self._gpus = gpus
        self._cpu = 0.0
        self._wall = float(self._process.create_time())
        # Process 0 alone has these: process -> its last values that are not logged, and the step of its last point.
        self._unlogged: dict[int, Mapping[str, float]] = {}
        self._logged: dict[int, int] = {}

    def sample(self, step: int) -> None:
        """Measures and logs; see `Usage`."""
        now = time.monotonic()
        if now >= self._due:
            every_s = self._every_s if self._measured >= _FIRST else min(_FIRST_EVERY_S, self._every_s)
            self._due = now + every_s
            self._measured += 1
            usage = {CPU: self._cpu_percent(), MEMORY: self._process.memory_info().rss / 1e6}
            if self._gpus is not None:
                usage |= self._gpus.measure()
            if self._team.is_first:
                self._unlogged[self._team.index] = usage
            else:
                self._team.report(usage)
        self.finish(step)

    def _cpu_percent(self) -> float:
        """Returns the CPU time of all threads since the last call, in percent of one core."""
        cpu_before = self._cpu
        wall_before = self._wall
        self._cpu = time.process_time()
        self._wall = time.time()
        # The wall clock may be set back.
        seconds = max(self._wall - wall_before, 1e-3)
        return 100.0 * (self._cpu - cpu_before) / seconds

    def finish(self, step: int) -> None:
        """Logs the new values of each process that has no point at this step; see `Usage`."""
        self._unlogged |= self._team.reported()
        points: dict[str, float] = {}
        for index in list(self._unlogged):
            if self._logged.get(index) == step:
                continue
            self._logged[index] = step
            for name, value in self._unlogged.pop(index).items():
                points[f"system/process-{index}/{name}"] = value
        if points:
            self._log(step, points)
