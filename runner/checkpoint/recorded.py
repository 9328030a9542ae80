"""Recorded command lines: whose they are, and what one of somebody else may set.

Anyone may have written a record, so one that is not this user's own is read as data and not as a command. It may set
keys of a run's groups, and nothing of Hydra, which imports and calls what its config names. What runs code or leads
elsewhere (a builder that is not the runner's, a tracking store, a folder) must be typed again.

A record is this user's own if it is a file of this user in a folder of this user, and nobody else can write to either.
One in an object store or a tracking store is never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
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
_CODE = {_TARGET, "builder", "maximize", "minimize"}
_PLACES = {
    "coordinator",
    "data_dir",
    "file",
    "folder",
    "interface",
    "path",
    "preset",
    "secret_file",
    "tokenizer",
    "uri",
}
# A resumed run saves in its own folder, whatever a foreign record says.
_CHECKPOINT_FOLDER = "trainer.checkpoint.folder"
# Keys by which a command line names a run; no record has them.
_RUN_KEYS = ("resume", "name", "branch", "run")
# Characters of an override that a message shows.
_LONGEST = 120


def why_foreign(folder: Place, name: str) -> str:
    """Returns why a record is not this user's own; empty if it is.

    Args:
      folder: of the run or sweep.
      name: of the record in it.
    """
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


@dataclass(frozen=True)
class Record:
    """A recorded command line, and where it comes from.

    Attributes:
      key: what the user typed to name it: `resume`, `run` or `sweep.resume`.
      source: what that names: a folder, or a sweep's run.
      foreign: why it is not this user's own, see `why_foreign`; empty if it is.
    """

    key: str
    source: str
    foreign: str

    def checked(self, arguments: object) -> list[str]:
        """Returns the overrides to apply.

        Args:
          arguments: the recorded ones, without those that are typed again.

        Raises:
          ConfigError: an override sets what a foreign record may not set; names it and the fix.
        """
        if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
            raise self._invalid(
                str(arguments), "is not a list of overrides", "don't use it: the runner did not write this record"
            )
        if not self.foreign:
            return list(arguments)
        parser = OverridesParser.create()
        kept: list[str] = []
        for argument in arguments:
            try:
                override = parser.parse_override(argument)
                self._check(argument, override)
            except HydraException:
                raise self._invalid(argument, "is not an override") from None
            except RecursionError:
                raise self._invalid(argument, "is nested too deeply") from None
            if override.key_or_group != _CHECKPOINT_FOLDER:
                kept.append(argument)
        return kept

    def _check(self, argument: str, override: Override) -> None:
        name = override.key_or_group
        if override.package is not None or name.partition(".")[0] not in _groups():
            raise self._invalid(argument, "is not a key of a run")
        if name == _CHECKPOINT_FOLDER:
            return
        type_again = f"if you trust it, type {_typed(argument)} as well"
        for path, value in _settings(tuple(name.split(".")), override):
            if len(path) == 1 and not str(value).replace("_", "").replace("-", "").isalnum():
                raise self._invalid(argument, "is not the name of an option")
            if "${" in str(value):
                raise self._invalid(argument, f"reads values from outside the record ({self.foreign})", type_again)
            if value is None or value is False or value in ({}, []):
                continue
            is_ours = path == ("model", _TARGET) and str(value).startswith(_OWN_BUILDERS)
            if not _CODE.isdisjoint(path) and not is_ours:
                problem = f"would import and run code that is not the runner's ({self.foreign})"
                raise self._invalid(argument, problem, type_again)
            is_kind = path[-1] == "tokenizer" and value in ("bytes", "bpe")
            if not _PLACES.isdisjoint(path) and not is_kind:
                fix = f"{type_again}, or tracking=none" if path == ("tracking", "uri") else type_again
                raise self._invalid(argument, f"leads to a place outside the record ({self.foreign})", fix)

    def _invalid(self, argument: str, problem: str, fix: str = "") -> ConfigError:
        if not fix:
            fix = "remove the override from the record, or type yourself what you need"
        text = argument if len(argument) <= _LONGEST else f"{argument[:_LONGEST]}..."
        return ConfigError(f"{self.key}={self.source}: its recorded {text!r} {problem}; {fix}")


def _typed(argument: str) -> str:
    """Returns what to type in place of a recorded override, which must replace all that it sets."""
    if len(argument) <= _LONGEST and argument.isprintable() and "${" not in argument:
        return argument
    return f"{argument.partition('=')[0]}=..."


def _settings(path: tuple[str, ...], override: Override) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yields each key that an override sets with its value; for a sweep over values, each of them."""
    value: Any = override.value()
    values = [value]
    if isinstance(value, ChoiceSweep):
        values = value.list
    elif isinstance(value, Glob):
        # A pattern of option names becomes one name, so that it is checked as one.
        values = [pattern.strip("*") or "any" for pattern in value.include]
    for single in values:
        yield from _leaves(path, single)


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _leaves(path, inner)
    else:
        yield path, value


def _groups() -> set[str]:
    return {spec.name for spec in fields(RunConfig)} - set(_RUN_KEYS) | {"experiment"}
