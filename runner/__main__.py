"""The train command: `python -m runner mesh=batch8 model=mlp`."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from runner.cli import run_command
from runner.jobs import current_job, run_job
from runner.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    """Trains; a job of a multirun trains in a process of its own."""
    job = current_job()
    if job is not None:
        run_job(job, "runner")
        return
    from runner.train import run

    run(config, composed)


def main() -> None:
    """Runs the command and exits with its code."""
    sys.exit(run_command(command))


if __name__ == "__main__":
    main()
