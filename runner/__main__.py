"""The train command: `python -m runner mesh=batch8 model=mlp`."""

from __future__ import annotations

import subprocess
import sys

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.cli import run_command
from runner.errors import EngineError
from runner.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    """Trains; a job of a multirun trains in a process of its own, for virtual devices can't change within one."""
    hydra_config = HydraConfig.get()
    if hydra_config.mode == RunMode.MULTIRUN:
        overrides = [*hydra_config.overrides.task, f"hydra.run.dir={hydra_config.runtime.output_dir}"]
        done = subprocess.run([sys.executable, "-m", "runner", *overrides], check=False)
        if done.returncode:
            raise EngineError(f"job {hydra_config.job.num} ended with exit code {done.returncode}")
        return
    from runner.train import run

    run(config, composed)


def main() -> None:
    """Runs the command and exits with its code."""
    sys.exit(run_command(command))


if __name__ == "__main__":
    main()
