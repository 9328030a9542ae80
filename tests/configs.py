"""Configs of tests: frozen, so that a test replaces keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

Config = TypeVar("Config", bound=Any)


def with_keys(config: Config, keys: Mapping[str, Any]) -> Config:
    """Returns a config with other values.

    Args:
      config: a dataclass of the schema.
      keys: dotted key to value.

    Example:
      >>> from runner.config.schema import RunConfig
      >>> with_keys(RunConfig(), {"trainer.checkpoint.keep": 5}).trainer.checkpoint.keep
      5
    """
    for key, value in keys.items():
        name, _, inner = key.partition(".")
        changed = with_keys(getattr(config, name), {inner: value}) if inner else value
        config = replace(config, **{name: changed})
    return config
