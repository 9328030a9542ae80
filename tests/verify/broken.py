"""`runner.verify`, or `runner` where $COMMAND is train, with the processes of `tests.verify.broken_worker`."""

from __future__ import annotations

import functools
import os

from omegaconf import DictConfig

from runner.cli import entry
from runner.config.schema import RunConfig

WORKER = "tests.verify.broken_worker"


def run(config: RunConfig, composed: DictConfig) -> None:
    from runner.train import run as train
    from runner.verify import record

    if os.environ.get("COMMAND") == "train":
        train.run(config, composed, functools.partial(record.computed, worker=WORKER))
    else:
        record.run(config, composed, worker=WORKER)


if __name__ == "__main__":
    entry.main("tests.verify.broken")
