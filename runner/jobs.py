"""Jobs of a multirun, each in a process of its own: virtual devices can't change within one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from runner.errors import EngineError


@dataclass(frozen=True)
class Job:
    """One job of a multirun.

    Attributes:
      number: from 0.
      overrides: its own command line.
      folder: where it writes.
    """

    number: int
    overrides: tuple[str, ...]
    folder: Path


def current_job() -> Job | None:
    """Returns the job that Hydra calls the command for, None where the command is no multirun."""
    hydra_config = HydraConfig.get()
    if hydra_config.mode != RunMode.MULTIRUN:
        return None
    folder = Path(hydra_config.runtime.output_dir)
    return Job(int(hydra_config.job.num), tuple(hydra_config.overrides.task), folder)


def run_job(job: Job, module: str, *, quiet: bool = False) -> None:
    """Runs a job as `python -m module` and waits for it.

    Args:
      job: its overrides and folder.
      module: the command's module.
      quiet: drops what it prints to stdout.

    Raises:
      EngineError: it ended with an exit code other than 0.
    """
    command = [sys.executable, "-m", module, *job.overrides, f"hydra.run.dir={job.folder}"]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL if quiet else None)
    if done.returncode:
        raise EngineError(f"job {job.number} ended with exit code {done.returncode}")
