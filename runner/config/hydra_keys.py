"""What of Hydra's own config a command line may set, and to what; the rest is the program's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hydra.core.override_parser.types import Override

from runner.errors import ConfigError, did_you_mean, invalid

NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
SLICED = re.compile(r"\w+\[[^']*\][^']*")
_CALLBACKS = "hydra.callbacks."
_OURS = ("run", "sweep")
_GROUPS = ("hydra/launcher", "hydra/sweeper", "hydra/job_logging", "hydra/hydra_logging", "hydra/help", "hydra/output")


def _is_text(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


def _is_flag(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and "${" in value)


def _is_source(value: object) -> bool:
    if not isinstance(value, str):
        return False
    kind, colon, path = value.partition("://")
    return bool(colon) and (kind == "pkg" or (kind == "file" and Path(path).is_dir()))


# Key to what it takes: a test, how that reads, a value that works.
_KINDS: dict[str, tuple[Callable[[object], bool], str, str]] = {
    "hydra.run.dir": (_is_text, "the path of a folder", "outputs/mine"),
    "hydra.sweep.dir": (_is_text, "the path of a folder", "outputs/mine"),
    "hydra.sweep.subdir": (_is_text, "the path of a folder", "'${hydra.job.num}'"),
    "hydra.output_subdir": (lambda value: value is None or _is_text(value), "a folder's name, or null", ".hydra"),
    "hydra.mode": (lambda value: value in ("RUN", "MULTIRUN"), "RUN or MULTIRUN", "MULTIRUN"),
    "hydra.verbose": (
        lambda value: (
            all(isinstance(one, str) and one for one in value)
            if isinstance(value, list)
            else isinstance(value, bool) or _is_text(value)
        ),
        "true, false, or names of loggers",
        "true",
    ),
    "hydra.job.name": (_is_text, "a word", "mine"),
    "hydra.job.chdir": (_is_flag, "true or false", "false"),
    "hydra.searchpath": (
        lambda value: isinstance(value, list) and all(map(_is_source, value)),
        "a list of file://<folder that is there> and pkg://<package>",
        "[file:///home/me/conf]",
    ),
}
_BELOW = ("hydra.launcher.", "hydra.sweeper.", "hydra.job_logging.", "hydra.hydra_logging.", "hydra.help.")


def check(text: str, one: Override, *, multirun: bool) -> None:
    """Checks an override of Hydra's own config.

    Args:
      text: as typed.
      one: the same, parsed.
      multirun: whether -m is given.

    Raises:
      ConfigError: the key is not for the command line, or can't hold the value.
    """
    key = one.key_or_group
    if one.is_delete():
        raise ConfigError(f"{text}: Hydra needs what is there; drop it")
    if key.startswith(_CALLBACKS):
        _check_callback(text, one)
    elif key in _KINDS:
        _check_kind(one, multirun=multirun)
    elif not (key.startswith(_BELOW) or key in _GROUPS or (key.startswith("hydra.job.env_set.") and one.is_add())):
        names = [*_KINDS, *_GROUPS[:2], "hydra.launcher.<key>", "hydra.sweeper.<key>"]
        fix = did_you_mean(key, [*_KINDS, *_GROUPS], "leave the others as they are")
        raise ConfigError(f"{text}: no such key that can be set; those are {', '.join(names)}; {fix}")


def _check_kind(one: Override, *, multirun: bool) -> None:
    key = one.key_or_group
    fits, allowed, example = _KINDS[key]
    value = None if one.is_sweep_override() else one.value()
    if one.is_sweep_override() or not fits(value):
        raise invalid(key, one.get_value_string(), problem=allowed, fix=f"set {key}={example}")
    if key == "hydra.mode" and value == "RUN" and multirun:
        raise invalid(key, value, problem="-m asks for MULTIRUN", fix="drop one of the two")


def _check_callback(text: str, one: Override) -> None:
    """Lets a user add callbacks, and none of the program's own be changed."""
    name = one.key_or_group.removeprefix(_CALLBACKS).partition(".")[0]
    value = None if one.is_sweep_override() else one.value()
    if name in _OURS or not (isinstance(value, dict) and isinstance(value.get("_target_"), str)):
        allowed = f"{' and '.join(_OURS)} are the program's own, others are added with what they call"
        raise ConfigError(f"{text}: {allowed}; write +{_CALLBACKS}mine={{_target_:package.module.Class}}")
