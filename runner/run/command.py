"""What `python -m runner` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from runner.config.schema import RunConfig
from runner.errors import invalid
from runner.host.late import late

if TYPE_CHECKING:
    from runner.run import train
else:
    train = late("runner.run.train")


def run(config: RunConfig, composed: DictConfig) -> None:
    """Trains; see `runner.run.train.run`.

    Raises:
      ConfigError: `run`, which names a recorded run to be evaluated or exported.
    """
    if config.run is not None:
        allowed = "it is for runner.evaluate and runner.export"
        raise invalid("run", config.run, problem=allowed, fix="resume=... trains on")
    train.run(config, composed)
