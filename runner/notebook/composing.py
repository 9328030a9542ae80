"""A config from overrides, in a process that is not the command's: a notebook, a test, another Hydra program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.version import VersionBase

from runner.checks.composed import convert
from runner.cli import command_line
from runner.cli.app import register_resolvers
from runner.cli.refusals import one_line
from runner.config.hydra_node import without_hydra
from runner.config.schema import RunConfig
from runner.errors import ConfigError, DataError, EngineError, TrackingError, invalid
from runner.host import paths, secrets
from runner.training.checkpoint import arguments


def compose(*overrides: str, config_dir: str | Path | None = None) -> RunConfig:
    """Composes and checks the config of a command line, without running anything.

    Args:
      *overrides: as on the command line, `mesh=batch8`, `trainer.epochs=2`, `resume=latest`.
      config_dir: folder of more options, as `--config-dir`.

    Returns:
      The checked config, with what was not given at its default.

    Raises:
      ConfigError: what can't work, in the line that the command prints.

    Example:
      >>> compose("mesh=batch8", "dataset=digits").mesh.axes
      {'batch': 8}
    """
    typed = arranged(overrides, config_dir)
    try:
        words = command_line.arranged(arguments.expand(secrets.hide_arguments(typed)))
        with _own_hydra():
            composed = hydra_compose("config", overrides=words, return_hydra_config=True)
            return convert(without_hydra(composed))
    except (ConfigError, DataError, EngineError, TrackingError):
        raise
    except Exception as error:  # Hydra's and OmegaConf's share no base class
        raise ConfigError(one_line(error)) from None


def arranged(overrides: Sequence[str], config_dir: str | Path | None) -> list[str]:
    """Returns overrides as a command takes them.

    Raises:
      ConfigError: one of them is no text, or a flag.
    """
    for one in overrides:
        if not isinstance(one, str):
            raise ConfigError(f"{one!r}: overrides are texts; write 'key=value'")
        if one.startswith("-"):
            raise ConfigError(f"{one}: no flags here; write 'key=value', or type python -m runner {one}")
    if config_dir is None:
        return list(overrides)
    folder = Path(config_dir).expanduser().absolute()
    if not folder.is_dir():
        raise invalid("config_dir", config_dir, problem="a folder", fix="name one that holds groups, as conf does")
    quoted = folder.as_posix().replace("'", "\\'")
    return [f"hydra.searchpath=['file://{quoted}']", *overrides]


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Gives the block a Hydra of its own; the one of the program around it is there again afterwards."""
    register_resolvers()
    around = GlobalHydra.instance().hydra
    base = VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir()), job_name="runner"):
            yield
    finally:
        GlobalHydra.instance().hydra = around
        VersionBase.instance().version_base = base
