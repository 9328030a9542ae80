"""`runner.verify`, or `runner` where $COMMAND is train, with the process of `tests.verify.broken_worker`."""

import os

from omegaconf import DictConfig

from runner.cli import entry
from runner.config.schema import RunConfig


def run(config: RunConfig, composed: DictConfig) -> None:
    from runner.train import run as train
    from runner.verify import record

    record.WORKER = "tests.verify.broken_worker"
    if os.environ.get("COMMAND") == "train":
        train.run(config, composed, record.computed)
    else:
        record.run(config, composed)


if __name__ == "__main__":
    entry.main("tests.verify.broken")
