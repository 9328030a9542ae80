"""Checks of overrides of Hydra's own config: the keys that a command line may set, and their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from hydra.core.override_parser.types import Override

from runner.config.fields import Constraint, Problem, fix_for, is_root, valid_if
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


def _is_text(value: object) -> bool:
    # YAML reads a folder named 2025 as a number, and a flag is not a name.
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


_NOT_ROOT = valid_if(lambda path: not is_root(str(path)), "must not be the root of the file system")


def _folder_problem(value: object) -> str | None:
    if not _is_text(value):
        return "must be the path of a folder"
    return _NOT_ROOT(value)


def subfolder_problem(value: object) -> str | None:
    """Returns why a value is not the name of a folder inside the run's folder, nor null; None: it is one."""
    path = PurePath(str(value))
    is_inside = _is_text(value) and not path.is_absolute() and ".." not in path.parts
    if value is None or is_inside:
        return None
    return "must be a folder's name inside the run's folder, or null"


def _are_loggers(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(name, str) and name for name in value)
    return isinstance(value, bool) or _is_text(value)


def _is_flag(value: object) -> bool:
    # Hydra resolves an interpolation only after this check.
    is_interpolation = isinstance(value, str) and "${" in value
    return isinstance(value, bool) or is_interpolation


def _searchpath_problem(value: object) -> str | None:
    if isinstance(value, list) and all(map(_is_config_source, value)):
        return None
    # No folder is known to exist, and an example would be rejected as the value was.
    return Problem(
        "must be a list of file://<existing folder> and pkg://<package>",
        fix="name a folder of options that exists by its whole path",
    )


def _is_config_source(value: object) -> bool:
    if not isinstance(value, str):
        return False
    # Hydra only warns of a folder that does not exist, so it is checked here.
    scheme, _, path = value.partition("://")
    return scheme == "pkg" or (scheme == "file" and Path(path).is_dir())


HYDRA_KEYS: Mapping[str, Constraint] = {
    "hydra.run.dir": Constraint(whole=_folder_problem, example="outputs/mine"),
    "hydra.sweep.dir": Constraint(whole=_folder_problem, example="outputs/mine"),
    "hydra.sweep.subdir": Constraint(whole=_folder_problem, example="'${hydra.job.num}'"),
    "hydra.output_subdir": Constraint(whole=subfolder_problem, example=".hydra"),
    "hydra.mode": Constraint(
        whole=valid_if(("RUN", "MULTIRUN").__contains__, "must be RUN or MULTIRUN"), example="MULTIRUN"
    ),
    "hydra.verbose": Constraint(
        whole=valid_if(_are_loggers, "must be true, false, or names of loggers"), example=True
    ),
    "hydra.job.name": Constraint(whole=valid_if(_is_text, "must be a name"), example="mine"),
    "hydra.job.chdir": Constraint(whole=valid_if(_is_flag, "must be true or false"), example=False),
    "hydra.searchpath": Constraint(whole=_searchpath_problem),
}


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
