"""The command of `python -m runner`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from runner.config.schema import RunConfig
from runner.errors import invalid
from runner.host.late import late

if TYPE_CHECKING:
    from runner.train import run as train
    from runner.verify import record
else:
    train = late("runner.train.run")
    record = late("runner.verify.record")


def run(config: RunConfig, composed: DictConfig) -> None:
    """Trains; see `runner.train.run.run`.

    Raises:
      ConfigError: `run` is set, which names a recorded run for other commands.
    """
    if config.run is not None:
        raise invalid(
            "run",
            config.run,
            problem="is for runner.verify, runner.evaluate, runner.generate and runner.export",
            fix=f"set resume={config.run} to continue training that run",
        )
    train.run(config, composed, record.computed)
