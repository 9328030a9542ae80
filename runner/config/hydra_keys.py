"""Checks of overrides of Hydra's own config that Hydra does not make itself: keys without an effect, and folders."""

from __future__ import annotations

from pathlib import Path, PurePath

from hydra.core.override_parser.types import Override

from runner.config.locations import is_root
from runner.config.search_path import FOLDERS_KEY, sets_folders
from runner.errors import ConfigError, invalid


def _is_text(value: object) -> bool:
    # YAML reads a folder named 2025 as a number, and a flag is not a name.
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


def _folder_problem(value: object) -> str | None:
    if not _is_text(value):
        return "must be the path of a folder"
    return "must not be the root of the file system" if is_root(str(value)) else None


def subfolder_problem(value: object) -> str | None:
    """Returns why a value is not the name of a folder inside the run's folder, nor null; None: it is one."""
    path = PurePath(str(value))
    is_inside = _is_text(value) and not path.is_absolute() and ".." not in path.parts
    if value is None or is_inside:
        return None
    return "must be a folder's name inside the run's folder, or null"


def _searchpath_problem(value: object) -> str | None:
    if isinstance(value, list) and all(map(_is_config_source, value)):
        return None
    return "must be a list of file://<existing folder> and pkg://<package>"


def _is_config_source(value: object) -> bool:
    # Hydra only warns of a folder that does not exist, so it is checked here.
    scheme, _, path = str(value).partition("://")
    return scheme == "pkg" or (scheme == "file" and Path(path).is_dir())


def _callback_problem(value: object) -> str | None:
    if isinstance(value, dict) and isinstance(value.get("_target_"), str):
        return None
    return "a callback needs a _target_"


# Keys of Hydra that have an effect here, with those below them and the groups of these names. Hydra would take any
# other, ignore it, and record it as if it had been applied.
_ACCEPTED = (
    *("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir", FOLDERS_KEY),
    *("hydra.mode", "hydra.verbose", "hydra.job.name", "hydra.job.chdir", "hydra.job.env_set"),
    *("hydra.launcher", "hydra.sweeper", "hydra.callbacks", "hydra.help", "hydra.job_logging", "hydra.hydra_logging"),
)
_CALLBACK = "hydra.callbacks."
_MINE = "outputs/mine"
# Key -> its test, and a value that the error suggests.
_TESTS = {
    "hydra.run.dir": (_folder_problem, _MINE),
    "hydra.sweep.dir": (_folder_problem, _MINE),
    "hydra.sweep.subdir": (_folder_problem, "'${hydra.job.num}'"),
    "hydra.output_subdir": (subfolder_problem, ".hydra"),
    _CALLBACK: (_callback_problem, "{_target_:package.module.Class}"),
    FOLDERS_KEY: (_searchpath_problem, "[file://<the whole path of a folder that exists>]"),
}


def check(text: str, override: Override, *, is_multirun: bool) -> None:
    """Rejects, by a ConfigError, an override of Hydra's own config; `is_multirun`: -m is among the flags."""
    key = override.key_or_group
    if override.is_delete():
        raise ConfigError(f"{text}: keys of Hydra can't be deleted; remove this override")
    dotted = key.replace("/", ".")
    if not any(f"{dotted}.".startswith(f"{accepted}.") for accepted in _ACCEPTED):
        unknown = "unknown key of Hydra, or one that can't be set here"
        raise ConfigError(f"{text}: {unknown}; remove it, or set one of {', '.join(_ACCEPTED)}")
    if key == FOLDERS_KEY and not sets_folders(text):
        raise ConfigError(f"{text}: must be typed without +; set {FOLDERS_KEY}={override.get_value_string()}")
    found = _TESTS.get(_CALLBACK if key.startswith(_CALLBACK) else key)
    if key == "hydra.mode" and is_multirun:
        # The only value that agrees with -m.
        found = (lambda value: None if value == "MULTIRUN" else "contradicts -m", "MULTIRUN")
    if found is None:
        return
    test, example = found
    problem: str | None = "can't be swept"
    if not override.is_sweep_override():
        problem = test(override.value())
    if problem is not None:
        raise invalid(key, override.get_value_string(), problem=problem, fix=f"set {key}={example}")
