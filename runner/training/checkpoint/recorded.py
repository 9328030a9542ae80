"""Recorded command lines: their signature, and what one from elsewhere may set.

Anyone may have written a record, so it is read as data and not as a command. It may set keys of the typed schema, and
nothing of Hydra, which imports and calls what its config names. What runs code or leads elsewhere (a builder that is
not the runner's, a tracking store, a folder, also one of configs) is accepted from this project's own records only,
and otherwise must be typed again.

A record is this project's own if it is signed with the project's key. Anyone can write a `run.json`, and copy or link
a folder into ours, but only those who can read the key can sign one. The key is in the project's outputs and not among
the checkpoints, so a folder of checkpoints never brings one along. Whoever can write to the outputs could bring both a
record and its key: so the outputs, the key and the run's folder must belong to this user, and nobody else may write
to them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, OverrideType
from hydra.errors import HydraException

from runner.config.schema import DatasetConfig, ModelConfig, OptimizerConfig, RunConfig, ScheduleConfig, TaskConfig
from runner.config.search_path import KEY
from runner.errors import ConfigError
from runner.host import key as signing_key
from runner.host.folders import why_not_ours
from runner.host.paths import outputs_dir, shown
from runner.host.stores.urls import Place

# The entry of a record that holds the signature.
SIGNATURE = "signature"

_TARGET = "_target_"
_BUILDER = ("model", _TARGET)
_OWN_BUILDERS = "runner.model."

# Mappings in a list or by name, which have the keys of a group: those of a mixture's parts, and a task's outputs.
_PARTS = ("dataset", "parts")
_OUTPUTS = ("task", "outputs")

# Where a record may have `_target_`, also in such a mapping. Elsewhere Hydra would call what it names.
_TARGETS = {
    _BUILDER,
    ("dataset", _TARGET),
    ("dataset", "augment", _TARGET),
    ("task", _TARGET),
    ("optimizer", _TARGET),
    ("optimizer", "schedule", _TARGET),
}

# Groups that have the keys of the function or class that they call in addition to their own.
_OPEN_GROUPS = (ModelConfig, DatasetConfig, TaskConfig, OptimizerConfig, ScheduleConfig)

# Group -> keys whose values are import paths. In a foreign record they count at any depth of the group, so no way to
# write a path, such as an index in a list, leads around the check.
_CODE_NAMES = {
    "model": {_TARGET},
    "dataset": {_TARGET, "builder"},
    "task": {_TARGET, "maximize", "minimize"},
    "optimizer": {_TARGET},
}

# Group -> keys that name a place outside the record, or open this machine to others, at any depth too.
_PLACE_NAMES = {
    "cluster": {"coordinator", "interface", "secret_file"},
    "dataset": {"data_dir", "path", "tokenizer"},
    "export": {"folder"},
    "generate": {"file"},
    "model": {"preset"},
    "tracking": {"uri"},
}

# A resumed run saves in its own folder, whatever a foreign record says.
_CHECKPOINT_FOLDER = ("trainer", "checkpoint", "folder")

# Keys by which a command line names a run; no record has them.
_RUN_KEYS = ("resume", "name", "branch", "run")

_PLAIN_NAME = re.compile(r"\w[\w-]*(\.[\w-]+)*")
_SWEEP_CHOICES = ("hydra/sweeper", "hydra/launcher")
_SWEEP_KEYS = {
    "hydra.sweeper.n_trials",
    "hydra.sweeper.seed",
    "hydra.sweeper.startup_trials",
    "hydra.sweeper.warmup_values",
    "hydra.sweeper.prune",
    "hydra.sweeper.study",
    "hydra.sweeper.from_default",
    "hydra.launcher.max_parallel",
    "hydra.launcher.timeout",
}
_FLAG = re.compile(r"(--config-dir|-cd|--config-name|-cn)(=.*)?")

# Characters of an override that a message shows.
_LONGEST = 120


def sign(name: str, arguments: Sequence[str]) -> str:
    """Returns the signature of a command line; empty if no key can be read or created.

    Args:
      name: of the run or sweep.
      arguments: as they are recorded.
    """
    folder = outputs_dir()
    if not signing_key.read_own(folder):
        signing_key.make(folder)
    secret = signing_key.read_own(folder)
    if not secret:
        return ""
    return _signature(secret, name, arguments)


def why_foreign(name: str, record: Mapping[str, Any], folder: Place | None = None) -> str:
    """Returns why a record's overrides are not this user's own in this project; empty if they are.

    Args:
      name: of the run or sweep.
      record: has the overrides and their signature.
      folder: of the run; None for a record in a tracking store.
    """
    outputs = outputs_dir()
    key = outputs / signing_key.NAME
    if not os.path.lexists(key):
        return "this project did not record it"
    # An object store has its own rules of access.
    for path in (outputs, folder) if isinstance(folder, Path) else (outputs,):
        problem = why_not_ours(path)
        if problem is not None:
            return f"{shown(path)} {problem}"
    secret = signing_key.read_own(outputs)
    if not secret:
        return f"{shown(key)} is not a private key of this user"
    expected = _signature(secret, name, record.get("overrides"))
    signature = str(record.get(SIGNATURE, ""))
    # In constant time, so that the time of an answer does not reveal how much of a forged signature is right.
    is_signed = hmac.compare_digest(expected.encode(), signature.encode())
    return "" if is_signed else "this project did not record it"


def _signature(secret: bytes, name: str, arguments: object) -> str:
    return hmac.new(secret, json.dumps([name, arguments]).encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Record:
    """A recorded command line, and where it comes from.

    Attributes:
      key: what the user typed to name it: `resume`, `run` or `sweep.resume`.
      source: what that names: a folder, or a sweep's run.
      foreign: why it is not this project's own, see `why_foreign`; empty if it is.
    """

    key: str
    source: str
    foreign: str

    @property
    def is_own(self) -> bool:
        """Whether this user recorded it in this project."""
        return not self.foreign

    def checked(self, arguments: object) -> list[str]:
        """Returns the overrides to apply.

        Args:
          arguments: the recorded ones, without those that are typed again.

        Raises:
          ConfigError: an override sets what a record may not set; names it and the fix.
        """
        if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
            raise self._invalid(
                str(arguments), "is not a list of overrides", "don't use it: the runner did not write this record"
            )
        parser = OverridesParser.create()
        kept: list[str] = []
        flags = _flags(arguments)
        for position, argument in enumerate(arguments):
            if self.is_own and (position in flags or argument.startswith(f"{KEY}=")):
                kept.append(argument)
                continue
            try:
                override = parser.parse_override(argument)
                is_accepted = self._accepts(argument, override)
            except HydraException:
                raise self._invalid(argument, "is not an override") from None
            except RecursionError:
                raise self._invalid(argument, "is nested too deeply") from None
            if is_accepted:
                kept.append(argument)
        return kept

    def _accepts(self, argument: str, override: Override) -> bool:
        """Returns whether an override is applied; False for one that means nothing to whoever resumes the run."""
        name = override.key_or_group
        if override.package is not None:
            raise self._invalid(argument, "moves a group to another package")
        if self.key.startswith("sweep.") and self._sets_up_sweep(name, override):
            return True
        settings = list(_settings(tuple(name.split(".")), override))
        for path, value in settings:
            self._check(argument, path, value, is_deleted=override.type == OverrideType.DEL)
        return self.is_own or all(path != _CHECKPOINT_FOLDER for path, _ in settings)

    def _sets_up_sweep(self, name: str, override: Override) -> bool:
        """Returns whether an override is one of Hydra's that a sweep may record."""
        values = [str(value) for _, value in _settings((name,), override)]
        if name in _SWEEP_CHOICES:
            return all(map(_PLAIN_NAME.fullmatch, values))
        if self.is_own and name.startswith("hydra."):
            return _TARGET not in str(override.input_line)
        return name in _SWEEP_KEYS and not any("${" in value for value in values)

    def _check(self, argument: str, path: tuple[str, ...], value: object, *, is_deleted: bool) -> None:
        """Checks one key and its value. The checks up to `is_own` hold for this project's records too."""
        group_path = _in_group(path)
        if any(_TARGET in part for part in path) and group_path not in _TARGETS:
            raise self._invalid(argument, f"names code with {_TARGET}")
        if not _is_known(path):
            raise self._invalid(argument, "is not a key of a run")
        if is_deleted:
            return
        if len(path) == 1 and value is not None and not _PLAIN_NAME.fullmatch(str(value)):
            raise self._invalid(argument, "is not the name of an option")
        if self.is_own:
            return
        type_again = f"if you trust it, type {_typed(argument)} as well"
        if "${" in str(value):
            raise self._invalid(argument, f"reads values from outside the record ({self.foreign})", type_again)
        is_ours = path == _BUILDER and str(value).startswith(_OWN_BUILDERS)
        names_code = not _CODE_NAMES.get(path[0], set()).isdisjoint(path[1:])
        if names_code and value is not None and not is_ours:
            problem = f"would import and run code that is not the runner's ({self.foreign})"
            raise self._invalid(argument, problem, type_again)
        if path == ("tracking", "uri"):
            type_again += ", or tracking=none"
        if _leads_elsewhere(path, value):
            raise self._invalid(argument, f"leads to a place outside the record ({self.foreign})", type_again)

    def _invalid(self, argument: str, problem: str, fix: str = "") -> ConfigError:
        if not fix:
            groups = ", ".join(group for group in _groups() if group not in ("sweep", "export"))
            fix = f"a record may set {groups}; remove the override from it, or type yourself what you need"
        return ConfigError(f"{self.key}={self.source}: its recorded {_shortened(argument)!r} {problem}; {fix}")


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."


def _typed(argument: str) -> str:
    """Returns what to type in place of a recorded override, which must replace all that it sets."""
    if len(argument) <= _LONGEST and argument.isprintable() and "${" not in argument:
        return argument
    return f"{argument.partition('=')[0]}=..."


def _leads_elsewhere(path: tuple[str, ...], value: object) -> bool:
    """Returns whether a key names a place outside the record, or opens this machine to others."""
    if value is None or value is False or value in ({}, []):
        return False
    if path[-1] == "tokenizer" and value in ("bytes", "bpe"):
        return False
    return not _PLACE_NAMES.get(path[0], set()).isdisjoint(path[1:])


def _flags(arguments: Sequence[str]) -> set[int]:
    """Returns the positions of the flags that select what is composed, and of the values that follow them."""
    positions: set[int] = set()
    for position, argument in enumerate(arguments):
        flag = _FLAG.fullmatch(argument)
        if flag is None:
            continue
        positions.add(position)
        has_value = flag[2] is not None
        if not has_value:
            positions.add(position + 1)
    return positions


def _settings(path: tuple[str, ...], override: Override) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yields each key that an override sets with its value; for a sweep over values, each of them."""
    value: Any = override.value()
    values = [value]
    if isinstance(value, ChoiceSweep):
        values = value.list
    elif isinstance(value, Glob):
        # A pattern of option names becomes one name, so that it is checked as one.
        values = [re.sub(r"[*?!\[\]]+", "x", pattern) for pattern in value.include]
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


def _in_group(path: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a path in a part of a mixture, or in an output of a task, as a path in the group itself."""
    # In a loop, because a record may name parts in parts, whether or not a dataset takes them.
    while path[:2] == _PARTS:
        # `dataset.parts=[{path: x}]`, whose entries have the path of the list, or `dataset.parts.0.path=x`.
        rest = path[3:] if len(path) > 2 and _is_index(path[2]) else path[2:]
        path = ("dataset", *rest)
    while path[:2] == _OUTPUTS:
        path = ("task", *path[3:])
    return path


def _is_index(part: str) -> bool:
    """Returns whether OmegaConf takes a part of a key as an index of a list, as it does `1_0`."""
    try:
        int(part)
    except ValueError:
        return False
    return True


def _groups() -> list[str]:
    return [spec.name for spec in fields(RunConfig) if spec.name not in _RUN_KEYS]


def _is_known(path: Sequence[str]) -> bool:
    """Returns whether the schema has a key; everything inside a mapping or a list of the schema counts as known."""
    if path[0] in _RUN_KEYS:
        return False
    if list(path) == ["experiment"]:
        return True
    kind: Any = RunConfig
    for part in path:
        # The group's own check knows which of the keys exist.
        if kind in _OPEN_GROUPS:
            return True
        if get_origin(kind) in (dict, list):
            return True
        types = get_type_hints(kind) if is_dataclass(kind) else {}
        if part not in types:
            return False
        kind = types[part]
    return True
