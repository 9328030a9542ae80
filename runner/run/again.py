"""What is typed to go on with a run that did not come to its end."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path

from runner.config.schema import CheckpointConfig, ClusterConfig
from runner.errors import ConfigError
from runner.host.paths import shown
from runner.processes import requeue
from runner.training.checkpoint import runs
from runner.training.checkpoint.arguments import folder_of

_KEY = "resume"
_LATEST = "latest"
_PROGRAM = "runner"


def line(folder: Path, cluster: ClusterConfig) -> str | None:
    """Returns the line that says how to go on with a run; None where it left no checkpoint, or Slurm starts it again.

    Args:
      folder: of the run's checkpoints.
      cluster: the run's; what started its processes has to start them again.
    """
    if cluster.requeue and requeue.job() is not None:
        return None
    place = folder_of(CheckpointConfig())  # where `resume` looks by itself
    try:
        name = runs.find(_KEY, str(folder), place)[0].run
    except ConfigError:
        return None
    if folder.parent != place:
        name = shown(folder)
    else:
        with suppress(ConfigError):
            name = _LATEST if runs.find(_KEY, _LATEST, place)[0].run == name else name
    command = f"{entry_point()} {shlex.quote(f'{_KEY}={name}')}"
    if cluster.name == "explicit":
        return f"go on with, in each process: {command} cluster.index=<its number>"
    started = " (started as before, by srun, mpirun or the like)" if cluster.name == "auto" else ""
    return f"go on with{started}: {command}"


def entry_point() -> str:
    """Returns how this process's command is typed: as a module, or as the program that an installation makes."""
    return _PROGRAM if Path(sys.argv[0]).name == _PROGRAM else f"python -m {_PROGRAM}"
