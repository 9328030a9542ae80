"""`runner.verify` with the processes of `tests.verify.broken_worker`."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from runner.cli import run_command
from runner.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    from runner.verify.record import run

    run(config, composed, worker="tests.verify.broken_worker")


if __name__ == "__main__":
    sys.exit(run_command(command))
