"""Teachers from recorded runs that were not exported: their export is made before the run that reads them starts."""

from __future__ import annotations

import subprocess
import sys

from runner.config.schema import RunConfig
from runner.errors import EXIT_REFUSED, invalid, passing
from runner.host import stages
from runner.processes import lifecycle as processes
from runner.task import teachers

# Begins the one line that a command writes about an error.
_ERROR = "error: "


def export_missing(config: RunConfig) -> None:
    """Exports each recorded run that is a teacher and has no export, by `python -m runner.export`.

    A process of its own restores the run's checkpoint: it needs another mesh and perhaps another engine.

    Args:
      config: checked.

    Raises:
      ConfigError: a run can't be exported, or each process of several would export it.
    """
    for name, reference in config.task.teachers.items():
        if not teachers.is_unexported(reference):
            continue
        key = f"task.teachers.{name}"
        command = f"python -m runner.export run={reference}"
        if processes.is_one_of_several(config.cluster) and not processes.launches(config.cluster):
            raise invalid(
                key, reference, problem="the run must be exported before several processes start", fix=f"run {command}"
            )
        with stages.stage(f"exporting run {reference}"):
            done = subprocess.run(
                [sys.executable, "-m", "runner.export", f"run={reference}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith(_ERROR)]
            reason = lines[-1].removeprefix(_ERROR) if lines else f"exit code {done.returncode}"
            # An export that was killed or ran out of memory may come through at the next start.
            error = invalid if done.returncode == EXIT_REFUSED else passing
            raise error(key, reference, problem=f"it can't be exported ({reason})", fix=f"see {command}")
        # Says so if the export has no file that Keras can load.
        teachers.file_of(name, reference)
