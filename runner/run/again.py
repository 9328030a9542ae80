"""The command that continues a run which ended before its last step."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from runner.config.schema import CheckpointConfig, ClusterConfig
from runner.errors import ConfigError
from runner.host import session
from runner.host.paths import shown
from runner.host.stores.urls import Place
from runner.training.checkpoint import runs
from runner.training.checkpoint.arguments import folder_of

_KEY = "resume"
_LATEST = "latest"
_PROGRAM = "runner"


def line(folder: Place, cluster: ClusterConfig, name: str | None = None) -> str | None:
    """Returns the line with the command that continues a run.

    Args:
      folder: the folder of the run's checkpoints.
      cluster: the run's; whatever started its processes has to start them again.
      name: of the run, with `resume=auto`; None: it has none.

    Returns:
      The line; None where the run left no checkpoint.
    """
    if name is not None:
        return f"To continue, start the same command again ({_KEY}=auto name={name})"
    default_folder = folder_of(CheckpointConfig())  # where `resume` searches for an id
    try:
        run_id = runs.find(_KEY, str(folder), default_folder)[0].id
    except (ConfigError, OSError):
        return None
    reference = run_id
    if folder.parent != default_folder:
        reference = shown(folder)
    else:
        with suppress(ConfigError):
            if runs.find(_KEY, _LATEST, default_folder)[0].id == run_id:
                reference = _LATEST
    command = f"{entry_point()} {shlex.quote(f'{_KEY}={reference}')}"
    if cluster.name == "explicit":
        return f"To continue, in each process: {command} cluster.index=<its number>"
    if cluster.name == "auto":
        return f"To continue, start it as before (srun, mpirun or similar): {command}"
    return f"To continue: {command}"


def entry_point() -> str:
    """Returns how this process's command is typed: as a module, or as the program that an installation makes."""
    is_console_script = Path(session.current().program).name == _PROGRAM
    return _PROGRAM if is_console_script else f"python -m {_PROGRAM}"
