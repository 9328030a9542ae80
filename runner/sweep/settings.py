"""Checks of launcher, sweeper and sweep overrides, before anything is opened for a sweep: run, folder or study."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.errors import ConfigError, did_you_mean, invalid
from runner.host.late import late

if TYPE_CHECKING:
    from runner.sweep import space
else:
    space = late("runner.sweep.space")  # with Optuna, which a grid does without

_LAUNCHER = "hydra.launcher"
_SWEEPER = "hydra.sweeper"
_OURS = "hydra_plugins.runner_sweep."
_Rule = tuple[Callable[[object], bool], str, str]


def _whole(low: int) -> _Rule:
    def test(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= low

    return test, f"a whole number of at least {low}", str(max(low, 1))


def _is_seconds(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)


_FLAG: _Rule = (lambda value: isinstance(value, bool), "true or false", "true")
_MAPPING: _Rule = (lambda value: isinstance(value, dict), "keys under it", "{}")
_TEXT: _Rule = (lambda value: isinstance(value, str) and bool(value), "a word", "mine")
_RULES: dict[str, dict[str, _Rule]] = {
    _LAUNCHER: {
        "max_parallel": _whole(1),
        "timeout": (_is_seconds, "seconds above 0, or null", "3600"),
        "parameters": _MAPPING,
        "cluster": (lambda value: value in ("slurm", "local"), "slurm or local", "slurm"),
    },
    _SWEEPER: {
        "params": _MAPPING,
        "n_trials": _whole(1),
        "storage": (
            lambda value: isinstance(value, str) and "://" in value,
            "a database's URI",
            "sqlite:///search.db",
        ),
        "study": (lambda value: value is None or _TEXT[0](value), "a word, or null", "mine"),
        "seed": _whole(0),
        "startup_trials": _whole(0),
        "warmup_values": _whole(0),
        "prune": _FLAG,
        "from_default": _FLAG,
    },
}
_TAKES = {
    "ProcessLauncher": ("max_parallel", "timeout"),
    "SubmititLauncher": ("cluster", "parameters", "max_parallel", "timeout"),
    "GridSweeper": ("params",),
    "SearchSweeper": tuple(_RULES[_SWEEPER]),
}
_OPTIONS = {"GridSweeper": "hydra/sweeper=grid", "SearchSweeper": "hydra/sweeper=optuna"}


def check(config: DictConfig, arguments: list[str]) -> None:
    """Checks launcher and sweeper, and what is swept.

    Args:
      config: as Hydra composed it for the multirun.
      arguments: the task's overrides, those of the sweeper's own params among them.

    Raises:
      ConfigError: a setting that the one or the other does not have, one that can't work, or nothing to sweep over.
    """
    launcher = _check_settings(_LAUNCHER, config)
    sweeper = _check_settings(_SWEEPER, config)
    overrides = OverridesParser.create().parse_overrides(arguments)
    if sweeper == "GridSweeper":
        for override in overrides:
            if override.is_interval_sweep():
                raise interval_error(override)
    if sweeper == "SearchSweeper":
        if launcher not in ("ProcessLauncher", "SubmititLauncher"):
            raise ConfigError("hydra/sweeper=optuna: needs a launcher of the runner; set hydra/launcher=processes")
        searched = [override for override in overrides if override.is_sweep_override()]
        if not searched:
            raise ConfigError(
                "hydra/sweeper=optuna: has nothing to search over; "
                "write 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))' or dataset.batch_size=64,128"
            )
        for override in searched:
            space.distribution(override)


def _check_settings(key: str, config: DictConfig) -> str:
    """Checks one of the two; returns the name of its class, where it is one of ours."""
    node = OmegaConf.select(config, key)
    target = str(node.get("_target_", "")) if isinstance(node, DictConfig) else ""
    if not target:
        raise invalid(key, node, problem="what an option sets", fix=f"choose one, as {key.replace('.', '/')}=basic")
    name = target.removeprefix(_OURS)
    if name not in _TAKES:
        return ""
    if name == "SubmititLauncher" and importlib.util.find_spec("submitit") is None:
        raise ConfigError("hydra/launcher=submitit_*: submitit is missing; pip install submitit")
    content = OmegaConf.to_container(node, resolve=True)
    assert isinstance(content, dict)
    for word, value in ((str(word), value) for word, value in content.items() if word != "_target_"):
        if word not in _TAKES[name]:
            takes = f"{_OPTIONS.get(name, 'this launcher')} takes {', '.join(_TAKES[name])}"
            other = next((_OPTIONS[one] for one in _OPTIONS if one != name and word in _TAKES[one]), None)
            fix = did_you_mean(word, _TAKES[name])
            if other and key == _SWEEPER:
                fix = f"choose {other}, or drop it"
            raise invalid(f"{key}.{word}", value, problem=takes, fix=fix)
        test, allowed, example = _RULES[key][word]
        if not test(value):
            raise invalid(f"{key}.{word}", value, problem=allowed, fix=f"set {key}.{word}={example}")
    return name


def interval_error(override: Override) -> ConfigError:
    """Returns the error of an interval in a grid."""
    fix = "choose hydra/sweeper=optuna, or name the values"
    return ConfigError(f"{override.input_line}: a grid needs values, not an interval; {fix}")
