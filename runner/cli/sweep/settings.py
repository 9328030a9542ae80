"""Checks of the launcher and the sweeper, before a sweep opens its run, its folder or its study."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.config import values
from runner.config.build import build, fields_of
from runner.config.schema_hydra import GridSweeper, ProcessLauncher, SearchSweeper, SubmititLauncher
from runner.errors import ConfigError, did_you_mean, invalid
from runner.host.late import late

if TYPE_CHECKING:
    from runner.cli.sweep import space
else:
    # It imports Optuna, which a grid does without.
    space = late("runner.cli.sweep.space")

_LAUNCHER = "hydra.launcher"
_SWEEPER = "hydra.sweeper"
_PLUGINS = "hydra_plugins.runner_sweep."

# Class of a plugin -> its keys.
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (ProcessLauncher, SubmititLauncher, GridSweeper, SearchSweeper)
}
_OPTIONS = {"GridSweeper": "hydra/sweeper=grid", "SearchSweeper": "hydra/sweeper=optuna"}


def check(config: DictConfig, arguments: list[str]) -> None:
    """Checks launcher and sweeper, and the swept keys.

    Args:
      config: the config of the multirun, composed by Hydra.
      arguments: overrides of the task, including those of the sweeper's own params.

    Raises:
      ConfigError: an unknown key, an invalid value, or nothing to sweep over.
    """
    launcher = _check_settings(_LAUNCHER, config)
    sweeper = _check_settings(_SWEEPER, config)
    overrides = OverridesParser.create().parse_overrides(arguments)
    if sweeper == "GridSweeper":
        for override in overrides:
            if override.is_interval_sweep():
                raise interval_error(override)
    if sweeper == "SearchSweeper":
        _check_search(launcher, overrides)


def _check_search(launcher: str, overrides: list[Override]) -> None:
    """Checks that a search can run its trials, and that every swept key has a distribution."""
    if launcher not in ("ProcessLauncher", "SubmititLauncher"):
        raise ConfigError("hydra/sweeper=optuna: needs one process per trial; set hydra/launcher=processes")
    swept = [override for override in overrides if override.is_sweep_override()]
    if not swept:
        raise ConfigError(
            "hydra/sweeper=optuna: no key is swept; "
            "write 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))' or dataset.batch_size=64,128"
        )
    for override in swept:
        space.distribution(override)


def _check_settings(key: str, config: DictConfig) -> str:
    """Checks the launcher or the sweeper.

    Args:
      key: `hydra.launcher` or `hydra.sweeper`.
      config: the config of the multirun.

    Returns:
      The name of its class; empty: it is not one of our plugins.
    """
    node = OmegaConf.select(config, key)
    target = str(node.get("_target_", "")) if isinstance(node, DictConfig) else ""
    if not target:
        raise invalid(key, node, problem="needs an option", fix=f"choose one, as {key.replace('.', '/')}=basic")
    name = target.removeprefix(_PLUGINS)
    if name not in _KINDS:
        return ""
    if name == "SubmititLauncher" and importlib.util.find_spec("submitit") is None:
        raise ConfigError("hydra/launcher=submitit_*: submitit is not installed; pip install submitit")
    content = OmegaConf.to_container(node, resolve=True)
    assert isinstance(content, dict)
    settings = {str(word): value for word, value in content.items() if word != "_target_"}
    for word, value in settings.items():
        if word not in fields_of(_KINDS[name]):
            raise _unknown_setting(key, word, value, name)
    # Hydra gives the plugin the values as they are, without a conversion.
    values.check(build(_KINDS[name], settings, key, strict=True), key)
    return name


def _unknown_setting(key: str, word: str, value: object, name: str) -> ConfigError:
    """Returns the error for a key that another plugin has, or none."""
    known = list(fields_of(_KINDS[name]))
    plugin = _OPTIONS.get(name, "this launcher")
    fix = did_you_mean(word, known, "remove it")
    for other, option in _OPTIONS.items():
        if key == _SWEEPER and other != name and word in fields_of(_KINDS[other]):
            fix = f"set {option}, or remove it"
    return invalid(f"{key}.{word}", value, problem=f"unknown key ({plugin} has {', '.join(known)})", fix=fix)


def interval_error(override: Override) -> ConfigError:
    """Returns the error for an interval where a grid needs values."""
    fix = "set hydra/sweeper=optuna, or list the values"
    return ConfigError(f"{override.input_line}: a grid needs values, not an interval; {fix}")
