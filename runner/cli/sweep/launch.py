"""Command line and environment of a sweep's jobs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from runner.checkpoint.arguments import (
    KEYS,
    key_of,
)
from runner.cli.sweep.jobs import Job
from runner.cli.sweep.process import (
    Command,
    run_to_end,
)
from runner.cli.sweep.state import (
    Sweep,
    adopted,
    started,
    varied_of,
)
from runner.config.convert import as_typed
from runner.config.search_path import FLAG, NAME_FLAG, PRIMARY
from runner.errors import ConfigError
from runner.host.cores import VARIABLE, available
from runner.host.folders import MARK
from runner.host.quoting import quoted
from runner.tracking.member import Membership

# Hydra's own overrides that select how jobs are launched or where they write: each job's command line has its own.
_LAUNCHING = ("hydra.launcher", "hydra/launcher", "hydra.sweep", "hydra/sweep", "hydra.run", "hydra.mode")


def local_command(sweep: Sweep, job: Job, master: DictConfig, *, parallel: int, report: str | None) -> Command:
    """Returns what runs a job in a process of its own on this machine.

    Args:
      sweep: the job's.
      job: to run.
      master: the multirun's config.
      parallel: jobs at a time, which share the cores.
      report: metric whose values the job writes to a file as they come; None: none.
    """
    parent_file = str(sweep.parent_file) if sweep.is_recorded else None
    member = Membership(None, job.number, dict(job.varied), report, parent_file)
    environment = member.environment()
    if parallel > 1:
        # Else each job would start as many threads as the machine has cores.
        environment[VARIABLE] = str(max(1, available() // parallel))
    return Command(arguments(sweep.module, job.overrides, master, job.folder), job.folder, environment)


def arguments(module: str, overrides: Sequence[str], master: DictConfig, folder: Path) -> list[str]:
    """Returns the command line of a job; a person can type it again.

    Args:
      module: the command.
      overrides: the job's own.
      master: the multirun's config, whose overrides of Hydra are the job's too.
      folder: where the job writes.
    """
    of_hydra = as_typed(master.hydra.overrides.hydra)
    shared = [override for override in of_hydra if not key_of(override).startswith(_LAUNCHING)]
    return [
        sys.executable,
        "-m",
        module,
        NAME_FLAG,
        str(master.hydra.job.config_name),
        *_config_folders(master),
        *overrides,
        *shared,
        # A preset may set MULTIRUN: the job would be a sweep of its own.
        "hydra.mode=RUN",
        f"hydra.run.dir={quoted(str(folder))}",
    ]


def retyped(module: str, overrides: Sequence[str], master: DictConfig) -> str:
    """Returns the command line that runs a job again, by itself and from its beginning.

    Args:
      module: the command.
      overrides: the job's own.
      master: the multirun's config.
    """
    words = ["python", "-m", module]
    name = str(master.hydra.job.config_name)
    if name != PRIMARY:
        words += [NAME_FLAG, name]
    words += _config_folders(master)
    words += [override for override in overrides if key_of(override) not in KEYS]
    return shlex.join(words)


def _config_folders(master: DictConfig) -> list[str]:
    words: list[str] = []
    for source in master.hydra.runtime.config_sources:
        if source.provider == "command-line":
            words += [FLAG, str(source.path)]
    return words


def run_foreign_job() -> None:
    """Runs the job that a launcher other than ours (Ray's, joblib's) started here, in a process of its own.

    Ray reuses its worker processes, and a process that has made a mesh can't make one of another size.

    Raises:
      ConfigError: the launcher does not send callbacks along.
    """
    sweep = started()
    shared = adopted()
    if sweep is not None:
        shared = sweep.shared()
    if shared is None:
        raise ConfigError("hydra/launcher: sends no callbacks to its jobs; use hydra/launcher=processes")
    hydra = HydraConfig.get()
    typed = as_typed(hydra.overrides.task)
    overrides = [override for override in typed if not key_of(override).startswith("sweep.")]
    member = Membership(shared.parent_run_id, int(hydra.job.num), varied_of(overrides, shared.varied))
    folder = Path(hydra.runtime.output_dir)
    (folder / MARK).touch()  # the sweep has claimed it, perhaps on another disk
    # In this process Hydra has composed the job alone: its own part is that of the multirun.
    master = DictConfig({"hydra": hydra})
    run_to_end(Command(arguments(shared.module, overrides, master, folder), folder, member.environment()))
