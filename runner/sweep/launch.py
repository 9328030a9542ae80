"""How a job becomes a process: its command line and its environment."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from runner.config.convert import as_typed
from runner.errors import ConfigError
from runner.host.cores import VARIABLE, available
from runner.host.folders import MARK
from runner.sweep.jobs import Job
from runner.sweep.member import Membership
from runner.sweep.process import Command, run_to_end
from runner.sweep.state import Sweep, adopted, started, varied_of
from runner.training.checkpoint.arguments import KEYS, key_of

# Hydra's own overrides that choose how jobs are launched or where they write, which the job's command line settles.
_LAUNCHING = ("hydra.launcher", "hydra/launcher", "hydra.sweep", "hydra/sweep", "hydra.run", "hydra.mode")
_CONFIG = "config"  # the name of the program's own


def local_command(sweep: Sweep, job: Job, master: DictConfig, *, parallel: int, report: str | None) -> Command:
    """Returns what runs a job in a process of its own on this machine.

    Args:
      sweep: the job's.
      job: what to run.
      master: the multirun's config.
      parallel: jobs at once, among which the cores are divided.
      report: metric whose values the job writes to a file as they come.
    """
    file = str(sweep.parent_file) if sweep.is_recorded else None
    member = Membership(None, job.number, dict(job.varied), report, file)
    cores = {VARIABLE: str(max(1, available() // parallel))} if parallel > 1 else {}
    return Command(
        arguments(sweep.module, job.overrides, master, job.folder),
        job.folder,
        environment={**member.environment(), **cores},
    )


def arguments(module: str, overrides: Sequence[str], master: DictConfig, folder: Path) -> list[str]:
    """Returns the command line of a job; a person can type it again.

    Args:
      module: the command.
      overrides: the job's own.
      master: the multirun's config, whose Hydra overrides hold for the job too.
      folder: where the job writes.
    """
    kept = [one for one in as_typed(master.hydra.overrides.hydra) if not key_of(one).startswith(_LAUNCHING)]
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return [
        sys.executable,
        "-m",
        module,
        "--config-name",
        str(master.hydra.job.config_name),
        *_config_folders(master),
        *overrides,
        *kept,
        "hydra.mode=RUN",
        f"hydra.run.dir='{quoted}'",
    ]


def retyped(module: str, overrides: Sequence[str], master: DictConfig) -> str:
    """Returns the command line that runs a job again, by itself and from its beginning.

    Args:
      module: the command.
      overrides: the job's own.
      master: the multirun's config.
    """
    name = str(master.hydra.job.config_name)
    named = [] if name == _CONFIG else ["--config-name", name]
    own = [one for one in overrides if key_of(one) not in KEYS]
    return shlex.join(["python", "-m", module, *named, *_config_folders(master), *own])


def _config_folders(master: DictConfig) -> list[str]:
    sources = [one.path for one in master.hydra.runtime.config_sources if one.provider == "command-line"]
    return [part for path in sources for part in ("--config-dir", str(path))]


def run_foreign_job() -> None:
    """Runs the job that a launcher other than ours (Ray's, joblib's) started here, in a process of its own.

    Ray uses its worker processes again, and a mesh of another size can't be made in a used one.

    Raises:
      ConfigError: the launcher does not send callbacks along.
    """
    sweep = started()
    hydra = HydraConfig.get()
    shared = sweep.shared() if sweep is not None else adopted()
    if shared is None:
        raise ConfigError("hydra/launcher: it sends no callbacks to its jobs; choose processes")
    overrides = [one for one in as_typed(hydra.overrides.task) if not key_of(one).startswith("sweep.")]
    member = Membership(shared.parent_run_id, int(hydra.job.num), varied_of(overrides, shared.varied))
    folder = Path(hydra.runtime.output_dir)
    (folder / MARK).touch()  # the sweep has claimed it, perhaps on another disk
    master = DictConfig({"hydra": hydra})
    run_to_end(Command(arguments(shared.module, overrides, master, folder), folder, member.environment()))
