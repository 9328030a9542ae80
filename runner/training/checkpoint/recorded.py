"""What a recorded command line may set. Anyone may have written it, so it is read as data and not as a command.

It may set keys of the typed schema, and nothing of Hydra, which imports and calls what its config names. What runs
code or leads elsewhere (a builder that is not the runner's, a tracking store, a folder, one of configs too) is taken
over where the record is this project's own, and else only where it is typed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, OverrideType
from hydra.errors import HydraException

from runner.config.schema import DatasetConfig, ModelConfig, RunConfig, TaskConfig
from runner.config.search_path import KEY
from runner.errors import ConfigError

_TARGET = "_target_"
_BUILDER = ("model", _TARGET)
_OWN_BUILDERS = "runner.model."
_CODE = {  # keys whose values are import paths
    _BUILDER,
    ("dataset", _TARGET),
    ("dataset", "builder"),
    ("dataset", "augment", _TARGET),
    ("task", _TARGET),
    ("task", "maximize"),
    ("task", "minimize"),
}
_FREE = (ModelConfig, DatasetConfig, TaskConfig)  # groups that have, beside their own keys, those of what they call
_ELSEWHERE = {
    ("cluster", "coordinator"),
    ("tracking", "uri"),
    ("dataset", "data_dir"),
    ("dataset", "path"),
    ("export", "folder"),
}
_BESIDE = ("trainer", "checkpoint", "folder")  # a run that goes on saves where it lies, whatever is recorded
_WORDS = ("resume", "branch", "run")  # what a command line names a run by, and no record does
_PLAIN = re.compile(r"\w[\w-]*(\.[\w-]+)*")
_SWEEP_CHOICES = ("hydra/sweeper", "hydra/launcher")
_SWEEP_KEYS = {
    *(f"hydra.sweeper.{key}" for key in ("n_trials", "seed", "startup_trials", "warmup_values", "prune", "study")),
    "hydra.sweeper.from_default",
    "hydra.launcher.max_parallel",
    "hydra.launcher.timeout",
}
_FLAG = re.compile(r"(--config-dir|-cd|--config-name|-cn)(=.*)?")
_LONGEST = 120  # characters of an override that are shown


@dataclass(frozen=True)
class Record:
    """A recorded command line, and where it comes from.

    Attributes:
      key: what the user typed to name it: `resume`, `run` or `sweep.resume`.
      source: what that names: a folder, or a sweep's run.
      is_own: whether this project recorded it.
    """

    key: str
    source: str
    is_own: bool

    def checked(self, arguments: object) -> list[str]:
        """Returns the overrides to take over.

        Args:
          arguments: what is recorded, without what is typed again.

        Raises:
          ConfigError: one of them sets what a record may not set; names it and what to do.
        """
        if not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
            raise self._refuse(str(arguments), "is no list of overrides", "leave it, the record is not the runner's")
        parser = OverridesParser.create()
        kept = list[str]()
        flags = _flags(arguments)
        for place, argument in enumerate(arguments):
            if self.is_own and (place in flags or argument.startswith(f"{KEY}=")):
                kept.append(argument)
                continue
            try:
                override = parser.parse_override(argument)
            except HydraException:
                raise self._refuse(argument, "is no override") from None
            if self._takes(argument, override):
                kept.append(argument)
        return kept

    def _takes(self, argument: str, override: Override) -> bool:
        """Returns whether an override is taken over; False for one that has no meaning for who takes it up."""
        name = override.key_or_group
        if override.package is not None:
            raise self._refuse(argument, "puts a group elsewhere")
        if self.key.startswith("sweep.") and self._sets_up_sweep(name, override):
            return True
        places = list(_places(tuple(name.split(".")), override))
        for path, value in places:
            self._check(argument, path, value, is_deleted=override.type == OverrideType.DEL)
        return self.is_own or all(path != _BESIDE for path, _ in places)

    def _sets_up_sweep(self, name: str, override: Override) -> bool:
        """Returns whether an override is one of Hydra's that a sweep may record."""
        values = [value for _, value in _places((name,), override)]
        if name in _SWEEP_CHOICES:
            return all(_PLAIN.fullmatch(str(value)) for value in values)
        if self.is_own and name.startswith("hydra."):
            return _TARGET not in str(override.input_line)
        return name in _SWEEP_KEYS and not any("${" in str(value) for value in values)

    def _check(self, argument: str, path: tuple[str, ...], value: object, *, is_deleted: bool) -> None:
        if any(_TARGET in part for part in path) and path not in _CODE:
            raise self._refuse(argument, f"names code by {_TARGET}")
        if not _is_known(path):
            raise self._refuse(argument, "is none of the keys of a run")
        if is_deleted:
            return
        if len(path) == 1 and value is not None and not _PLAIN.fullmatch(str(value)):
            raise self._refuse(argument, "is not an option's name")
        if self.is_own:
            return
        key = ".".join(path)
        again = f"if you trust it, type {key}={_short(str(value))} as well"
        if "${" in str(value):
            raise self._refuse(argument, "reads what is outside of it", f"type {key}=... as well")
        is_ours = value is None or (path == _BUILDER and str(value).startswith(_OWN_BUILDERS))
        if path in _CODE and not is_ours:
            raise self._refuse(argument, "would import and run code that is not the runner's", again)
        if path == ("tracking", "uri"):
            again += ", or tracking=none"
        if path in _ELSEWHERE and value is not None:
            raise self._refuse(argument, "leads to a place that this project did not record", again)

    def _refuse(self, argument: str, what: str, fix: str = "") -> ConfigError:
        groups = ", ".join(group for group in _groups() if group not in ("sweep", "export"))
        fix = fix or f"a record may set {groups}; take the override out of it, or type yourself what you need of it"
        return ConfigError(f"{self.key}={self.source}: its recorded {_short(argument)!r} {what}; {fix}")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _flags(arguments: Sequence[str]) -> set[int]:
    """Returns the places of the flags that say what is composed, and of the values behind them."""
    found: set[int] = set()
    for place, argument in enumerate(arguments):
        if (flag := _FLAG.fullmatch(argument)) is not None:
            found |= {place} if flag[2] else {place, place + 1}
    return found


def _places(path: tuple[str, ...], override: Override) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yields each key that an override sets, with its value; of a sweep over values, with each of them."""
    value: Any = override.value()
    values = [value]
    if isinstance(value, ChoiceSweep):
        values = value.list
    elif isinstance(value, Glob):  # of options' names
        values = [re.sub(r"[*?!\[\]]+", "x", one) for one in value.include]
    for one in values:
        yield from _leaves(path, one)


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _leaves((*path, str(key)), one)
    elif isinstance(value, list) and value:
        for one in value:
            yield from _leaves(path, one)
    else:
        yield path, value


def _groups() -> list[str]:
    return [spec.name for spec in fields(RunConfig) if spec.name not in _WORDS]


def _is_known(path: Sequence[str]) -> bool:
    """Returns whether the schema has a key; what lies in a mapping or a list of it counts as known."""
    if path[0] in _WORDS:
        return False
    if list(path) == ["experiment"]:
        return True
    kind: Any = RunConfig
    for part in path:
        if kind in _FREE:  # which of the keys there are, the group's own check knows
            return True
        specs = {spec.name: spec for spec in fields(kind)} if is_dataclass(kind) else {}
        if part not in specs:
            return kind in (dict, list)
        kind = specs[part].default_factory if specs[part].default_factory is not MISSING else None
    return True
