"""What the processes of a run take of their machines: logged by process 0, each under its own number."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psutil

from runner.host import proc
from runner.host.gpus import Gpus
from runner.processes.team import Team
from runner.training.history import LogPoints

CPU = "cpu_percent"
MEMORY = "memory_mb"
_EVERY_S = 5.0
# measurements at a run's start, which a short run has its curve of
_FIRST = 10
_FIRST_EVERY_S = 1.0


class Usage:
    """Measures nothing."""

    def sample(self, step: int) -> None:
        """Measures this process where it is time to, and logs what is known of all; comes after every device call.

        Args:
          step: training steps done.
        """

    def finish(self, step: int) -> None:
        """Logs what has not been logged, at the last step."""


class ProcessUsage(Usage):
    """Measures this process every few seconds, and tells process 0, which logs what is new of all of them.

    The points are `system/process-<i>/cpu_percent`, of one core, since the process measured before (at first since it
    started), and `system/process-<i>/memory_mb`, resident; of its GPUs see `runner.host.gpus`. MLflow shows metrics of
    such names as those of a system.
    """

    def __init__(self, team: Team, log: LogPoints, every_s: float = _EVERY_S, gpus: Gpus | None = None) -> None:
        """Begins to measure.

        Args:
          team: the processes.
          log: process 0's; takes (step, points).
          every_s: seconds between two measurements of a process.
          gpus: that the mesh is made of; null: it is not of GPUs.
        """
        self._team = team
        self._log = log
        self._every_s = every_s
        self._due = 0.0
        self._process = psutil.Process(proc.own_pid())
        self._measured = 0
        self._gpus = gpus
        self._cpu, self._wall = 0.0, float(self._process.create_time())
        self._unlogged: dict[int, Mapping[str, float]] = {}
        self._logged: dict[int, int] = {}  # process -> step of its last point

    def sample(self, step: int) -> None:
        """Measures and logs; see `Usage`."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + (self._every_s if self._measured >= _FIRST else min(_FIRST_EVERY_S, self._every_s))
            self._measured += 1
            usage = {CPU: self._cpu_percent(), MEMORY: self._process.memory_info().rss / 1e6}
            usage |= self._gpus.measure() if self._gpus is not None else {}
            if self._team.is_first:
                self._unlogged[self._team.index] = usage
            else:
                self._team.report(usage)
        self.finish(step)

    def _cpu_percent(self) -> float:
        """Returns the share of one core that this process took since the last time, all its threads together."""
        before = self._cpu
        since = self._wall
        self._cpu = time.process_time()
        self._wall = time.time()
        return 100.0 * (self._cpu - before) / max(self._wall - since, 1e-3)

    def finish(self, step: int) -> None:
        """Logs what is new of each process that has no point at this step; see `Usage`."""
        self._unlogged |= self._team.reported()
        points: dict[str, float] = {}
        for index in [index for index in self._unlogged if self._logged.get(index) != step]:
            usage, self._logged[index] = self._unlogged.pop(index), step
            points |= {f"system/process-{index}/{name}": value for name, value in usage.items()}
        if points:
            self._log(step, points)
