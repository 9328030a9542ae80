"""Recorded command lines: whose they are, and what one of somebody else may set.

Anyone may have written a record, so one that is not this user's own is read as data and not as a command. It may set
plain values of keys of a run's groups, and nothing of Hydra, which imports and calls what its config names. What may
run code or lead elsewhere (a builder, a mapping, a tracking store, a folder) must be typed again.

A record is this user's own if it is a file of this user in a folder of this user, and nobody else can write to either.
One in an object store or a tracking store is never.
"""

from __future__ import annotations

import re
from pathlib import Path

from runner.checkpoint.places import Place
from runner.config.build import fields_of
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.host.folders import is_own, why_not_ours
from runner.host.paths import shown

# Keys whose values are import paths, and keys that name a place outside the record or open this machine to others.
# They count at any depth of a group.
_REJECTED = {
    *("_target_", "maximize", "minimize"),
    *("coordinator", "data_dir", "file", "folder", "path", "preset", "tokenizer", "uri"),
}
_HARMLESS = ("null", "false", "bytes", "[]")
# A resumed run saves in its own folder, whatever a foreign record says.
_CHECKPOINT_FOLDER = "trainer.checkpoint.folder"
# Groups and keys that a record may set; it names no run.
_GROUPS = set(fields_of(RunConfig)) - {"resume", "name", "branch", "run"} | {"experiment"}
# A key and its value, without interpolations, mappings and escapes: neither a package nor a nested key can be in one.
_PLAIN = re.compile(r"(?:~|\+{0,2}(?=[\w.]+=))([\w.]+)(?:=([^${\\\n\r]*))?")
# The name of an option, or several: no path.
_OPTION = re.compile(r"[\w-]*(?:,[\w-]+)*")


def why_foreign(folder: Place, name: str) -> str:
    """Returns why the record of that name in a folder is not this user's own; empty if it is."""
    if not isinstance(folder, Path):
        return "it is in an object store"
    problem = why_not_ours(folder)
    if problem is not None:
        return f"{shown(folder)} {problem}"
    try:
        is_ours = is_own((folder / name).lstat())
    except OSError as error:
        return f"{shown(folder / name)} can't be read ({error.strerror})"
    return "" if is_ours else f"{shown(folder / name)} belongs to another user, or can be written by others"


def checked(source: str, foreign: str, arguments: list[str]) -> list[str]:
    """Returns the recorded overrides to apply, without those that are typed again.

    `source` is what the user typed to name the record, such as `resume=<folder>`; for `foreign` see `why_foreign`. A
    ConfigError names an override that a foreign record may not set.
    """
    if not foreign:
        return arguments
    kept = [argument for argument in arguments if not argument.lstrip("+~").startswith(f"{_CHECKPOINT_FOLDER}=")]
    for argument in kept:
        if not _is_plain(argument):
            typed = f"{argument.partition('=')[0]!r}=..."
            if argument.isprintable() and "$" not in argument:
                typed = argument
            raise ConfigError(
                f"{source}: its recorded {argument!r} could run code that is not the runner's, or lead to a place "
                f"outside the record ({foreign}); if you trust it, type {typed} as well"
            )
    return kept


def _is_plain(override: str) -> bool:
    """Returns whether an override sets a plain value of a run's key, or chooses an option of a group by its name."""
    match = _PLAIN.fullmatch(override)
    if match is None:
        return False
    path = match[1].split(".")
    value = match[2] or ""
    if path[0] not in _GROUPS or (len(path) == 1 and not _OPTION.fullmatch(value)):
        return False
    return _REJECTED.isdisjoint(path) or value in _HARMLESS
