"""The export command: `python -m runner.export run=<run id>` writes a run's model as a SavedModel."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from runner.cli import run_command
from runner.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    """Exports."""
    from runner.export.command import run

    run(config, composed)


def main() -> None:
    """Runs the command and exits with its code: 0 done, 1 failed or not equal to the run, 2 refused."""
    sys.exit(run_command(command))


if __name__ == "__main__":
    main()
