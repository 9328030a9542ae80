"""The train command: `python -m runner mesh=batch8 model=mlp`."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from runner.cli import run_command
from runner.errors import refuse
from runner.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    """Trains."""
    if config.run is not None:
        raise refuse(
            "run", config.run, allowed="it is for runner.evaluate and runner.export", mend="resume=... trains on"
        )
    from runner.train import run

    run(config, composed)


def main() -> None:
    """Runs the command and exits with its code."""
    sys.exit(run_command(command))


if __name__ == "__main__":
    main()
