"""A config from overrides, in a process that is not the command's: a notebook, a test, another Hydra program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.checkpoint import arguments
from runner.cli import command_line
from runner.cli.messages import one_line
from runner.cli.resolvers import register_resolvers
from runner.config.compose import compose as compose_config
from runner.config.hydra_node import without_hydra
from runner.config.schema import RunConfig
from runner.errors import ConfigError, DataError, EngineError, TrackingError, invalid
from runner.host import secrets, session
from runner.host.quoting import quoted
from runner.plan.checks.composed import convert


def compose(*overrides: str, config_dir: str | Path | None = None) -> RunConfig:
    """Composes and checks the config of a command line, without running anything.

    Args:
      *overrides: as on the command line, `mesh=batch8`, `trainer.epochs=2`, `resume=latest`.
      config_dir: folder of more options, as `--config-dir`.

    Returns:
      The checked config, with the default of each key that no override sets.

    Raises:
      ConfigError: the config is invalid; the message is the line that the command prints.

    Example:
      >>> compose("mesh=batch8", "dataset=digits").mesh.axes
      {'batch': 8}
    """
    typed = arranged(overrides, config_dir)
    with session.composing(typed):
        try:
            typed = command_line.arranged(arguments.expand(secrets.hide_arguments(typed)))
            register_resolvers()
            composed = compose_config(typed, with_hydra=True)
            return convert(without_hydra(composed))
        except (ConfigError, DataError, EngineError, TrackingError):
            raise
        except Exception as error:  # those of Hydra and OmegaConf share no base class
            raise ConfigError(one_line(error, typed)) from None


def arranged(overrides: Sequence[str], config_dir: str | Path | None) -> list[str]:
    """Returns overrides as a command takes them.

    Raises:
      ConfigError: one of them is not a string, or is a flag.
    """
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(f"{override!r}: must be a string; write 'key=value'")
        if override.startswith("-"):
            fix = f"write 'key=value', or type python -m runner {override}"
            raise ConfigError(f"{override}: must be an override, not a flag; {fix}")
    if config_dir is None:
        return list(overrides)
    folder = Path(config_dir).expanduser().absolute()
    if not folder.is_dir():
        fix = "name one that has groups, as conf has"
        raise invalid("config_dir", config_dir, problem="must be an existing folder", fix=fix)
    return [f"hydra.searchpath=[{quoted(f'file://{folder.as_posix()}')}]", *overrides]
