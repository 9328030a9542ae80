"""Checks of overrides of Hydra's own config: the keys that a command line may set, and their values."""

from __future__ import annotations

import re

from hydra.core.override_parser.types import Override

from runner.config.fields import fix_for
from runner.config.schema_hydra import HYDRA_KEYS
from runner.errors import ConfigError, did_you_mean, invalid, listed, shown

NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
SLICED = re.compile(r"\w+\[[^']*\][^']*")

_CALLBACKS = "hydra.callbacks."

_GROUPS = ("hydra/launcher", "hydra/sweeper", "hydra/job_logging", "hydra/hydra_logging", "hydra/help", "hydra/output")

# Keys below these are checked by `runner.cli.sweep.settings` or by Hydra.
_OPEN_PREFIXES = (
    "hydra.launcher.",
    "hydra.sweeper.",
    "hydra.job_logging.",
    "hydra.hydra_logging.",
    "hydra.help.",
)


def check(text: str, override: Override, *, multirun: bool) -> None:
    """Checks an override of Hydra's own config, as typed and as parsed; -m is given or not.

    Raises:
      ConfigError: the key can't be set on the command line, or the value is invalid.
    """
    key = override.key_or_group
    if override.is_delete():
        raise ConfigError(f"{text}: keys of Hydra can't be deleted; remove this override")
    if key.startswith(_CALLBACKS):
        _check_callback(text, override)
    elif key in HYDRA_KEYS:
        _check_value(override, multirun=multirun)
    elif not _is_open(key, override):
        names = [*HYDRA_KEYS, *_GROUPS]
        fix = did_you_mean(key, names, f"set one of {listed(names)}")
        raise ConfigError(f"{text}: unknown key of Hydra, or one that can't be set here; {fix}")


def _is_open(key: str, override: Override) -> bool:
    """Returns whether a key is for others to check."""
    is_new_variable = key.startswith("hydra.job.env_set.") and override.is_add()
    return key.startswith(_OPEN_PREFIXES) or key in _GROUPS or is_new_variable


def _check_value(override: Override, *, multirun: bool) -> None:
    key = override.key_or_group
    constraint = HYDRA_KEYS[key]
    assert constraint.whole is not None
    if override.is_sweep_override():
        problem: str | None = "can't be swept"
        value = None
    else:
        value = override.value()
        problem = constraint.whole(value)
    if problem is not None:
        fix = fix_for(problem, f"set {key}={shown(constraint.example)}")
        raise invalid(key, override.get_value_string(), problem=problem, fix=fix)
    if key == "hydra.mode" and value == "RUN" and multirun:
        raise invalid(key, value, problem="contradicts -m, which sets MULTIRUN", fix="remove one of the two")


def _check_callback(text: str, override: Override) -> None:
    value = None
    if not override.is_sweep_override():
        value = override.value()
    is_callback = isinstance(value, dict) and isinstance(value.get("_target_"), str)
    if not is_callback:
        raise ConfigError(
            f"{text}: a callback needs a _target_; write +{_CALLBACKS}mine={{_target_:package.module.Class}}"
        )
