"""Recorded command lines: whose they are, and what one of somebody else may set.

Anyone may have written a record, so one that is not this user's own is read as data and not as a command. It may set
keys of a run's groups, and nothing of Hydra, which imports and calls what its config names. What runs code or leads
elsewhere (a builder that is not the runner's, a tracking store, a folder) must be typed again.

A record is this user's own if it is a file of this user in a folder of this user, and nobody else can write to either.
One in an object store or a tracking store is never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override
from hydra.errors import HydraException

from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.host.folders import is_own, why_not_ours
from runner.host.paths import shown
from runner.host.stores.urls import Place

_TARGET = "_target_"
_OWN_BUILDERS = "runner.model."
# Keys whose values are import paths, and keys that name a place outside the record or open this machine to others.
# They count at any depth of a group, so no way to write a path, such as an index in a list, leads around the check.
_CODE = {_TARGET, "maximize", "minimize"}
_PLACES = {
    "coordinator",
    "data_dir",
    "file",
    "folder",
    "path",
    "preset",
    "tokenizer",
    "uri",
}
# A resumed run saves in its own folder, whatever a foreign record says.
_CHECKPOINT_FOLDER = "trainer.checkpoint.folder"
# Groups and keys that a record may set; it names no run.
_GROUPS = {spec.name for spec in fields(RunConfig)} - {"resume", "name", "branch", "run"} | {"experiment"}
# Characters of an override that a message shows.
_LONGEST = 120


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


def checked(source: str, foreign: str, arguments: object) -> list[str]:
    """Returns the recorded overrides to apply, without those that are typed again.

    `source` is what the user typed to name the record, such as `resume=<folder>`; for `foreign` see `why_foreign`.

    Raises:
      ConfigError: an override sets what a foreign record may not set; names it and the fix.
    """
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise ConfigError(f"{source}: its record is not a list of overrides; the runner did not write it")
    if not foreign:
        return list(arguments)
    parser = OverridesParser.create()
    kept: list[str] = []
    for argument in arguments:
        text = argument if len(argument) <= _LONGEST else f"{argument[:_LONGEST]}..."
        try:
            override = parser.parse_override(argument)
            is_of_a_run = _is_of_a_run(override)
        except (HydraException, RecursionError):
            is_of_a_run = False
        if not is_of_a_run:
            raise ConfigError(
                f"{source}: its recorded {text!r} is no override of a run; remove it from the record, or type "
                "yourself what you need"
            )
        if override.key_or_group == _CHECKPOINT_FOLDER:
            continue
        if any(_leads_outside(path, value) for path, value in _settings(override)):
            typed = argument
            if len(argument) > _LONGEST or not argument.isprintable() or "${" in argument:
                typed = f"{argument.partition('=')[0]}=..."
            raise ConfigError(
                f"{source}: its recorded {text!r} would import and run code that is not the runner's, or leads to a "
                f"place outside the record ({foreign}); if you trust it, type {typed} as well"
            )
        kept.append(argument)
    return kept


def _is_of_a_run(override: Override) -> bool:
    """Returns whether an override sets a key of a run, or chooses an option of a group by its name."""
    name = override.key_or_group
    if override.package is not None or name.partition(".")[0] not in _GROUPS:
        return False
    values = [value for path, value in _settings(override) if len(path) == 1]
    return all("${" in str(value) or str(value).replace("_", "").replace("-", "").isalnum() for value in values)


def _leads_outside(path: tuple[str, ...], value: object) -> bool:
    """Returns whether a value is an import path, a place, or read from outside the record."""
    if "${" in str(value):
        return True
    if value is None or value is False or value in ({}, []):
        return False
    is_own_builder = path == ("model", _TARGET) and str(value).startswith(_OWN_BUILDERS)
    is_kind_of_tokenizer = path[-1] == "tokenizer" and value == "bytes"
    is_code = not _CODE.isdisjoint(path) and not is_own_builder
    return is_code or (not _PLACES.isdisjoint(path) and not is_kind_of_tokenizer)


def _settings(override: Override) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yields each key that an override sets with its value; for a sweep over values, each of them."""
    value: Any = override.value()
    values = [value]
    if isinstance(value, ChoiceSweep):
        values = value.list
    elif isinstance(value, Glob):
        # A pattern of option names becomes one name, so that it is checked as one.
        values = [pattern.strip("*") or "any" for pattern in value.include]
    for single in values:
        yield from _leaves(tuple(override.key_or_group.split(".")), single)


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _leaves(path, inner)
    else:
        yield path, value
