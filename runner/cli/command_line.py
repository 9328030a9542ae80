"""The command line before Hydra reads it: flags and overrides in any order, checked by their form alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from runner.checkpoint.arguments import MULTIRUN
from runner.cli import suggestions
from runner.cli.commands import commands
from runner.cli.messages import is_group, short, unreadable
from runner.config import hydra_keys, short_keys
from runner.config.schema import RunConfig
from runner.config.search_path import FOLDER_FLAG, NAME_FLAG
from runner.config.texts import kept, kind_at
from runner.errors import ConfigError, did_you_mean
from runner.host.session import command_module

_RUNNING_FLAGS = ("--version", "--resolve", "--run", "-r", *MULTIRUN)
# Flag -> its values; none: any text. Hydra's --experimental-rerun is left out: it would unpickle a file.
_FLAGS_OF_A_CHOICE: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("--cfg", "-c"), ("job", "hydra", "all")),
    **dict.fromkeys(("--info", "-i"), ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")),
}
_FLAGS_WITH_VALUE = (*_FLAGS_OF_A_CHOICE, "--package", "-p", NAME_FLAG, "-cn", FOLDER_FLAG, "-cd")
# Flags with which Hydra prints something and runs nothing.
PRINTING_FLAGS = ("--help", "-h", "--hydra-help", "--shell-completion", "-sc", *_FLAGS_OF_A_CHOICE)
FLAGS = (*_RUNNING_FLAGS, *PRINTING_FLAGS, *_FLAGS_WITH_VALUE)
# Flags that only change what is printed.
_OF_PRINTING = ("--resolve", "--package", "-p")
# Recorded command lines are searched for the long form only.
_LONG_FORM = {"-cd": FOLDER_FLAG, "-cn": NAME_FLAG}
# Of a file, whose name has 255 bytes at most, without its `.yaml`.
_LONGEST_NAME = 250
_PLAIN = re.compile(r"[\w.][\w./-]*", re.ASCII)  # a value that needs no quotes
# Groups of which a config has one option, unlike `experiment` and a user's own.
_GROUPS = frozenset(RunConfig.__dataclass_fields__)


def arranged(arguments: Sequence[str]) -> list[str]:
    """Returns the command line as Hydra takes it: flags first, since its parser knows overrides on one side only.

    A ConfigError names an invalid flag, an override that is invalid in every config, or another command's short key.
    """
    flags, overrides = split(arguments)
    for flag in _OF_PRINTING:
        if flag in flags and set(PRINTING_FLAGS).isdisjoint(flags):
            raise ConfigError(f"{flag}: needs --cfg; add --cfg job")
    is_multirun = not set(MULTIRUN).isdisjoint(flags)
    module = command_module()
    _check_spaces(overrides)
    overrides = [kept(short_keys.typed_argument(text, module)) for text in overrides]
    parser = OverridesParser.create()
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except (HydraException, ValueError) as error:  # Python reads no integer of more than 4,300 digits
            raise unreadable(text) from error
        key = override.key_or_group
        if not key:
            raise ConfigError(f"'{short(text)}': has no key; write key=value")
        _check_length(text, key)
        if is_group(key):
            _check_options(override, text)
        if key == "hydra" or key.startswith(("hydra.", "hydra/")):
            hydra_keys.check(text, override, is_multirun=is_multirun)
    return [*flags, *short_keys.arranged(overrides)]


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the flags with their values, each an argument of its own, and the overrides; raises ConfigError."""
    flags: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--":
            overrides += rest
        elif not argument.startswith("-"):
            overrides.append(argument)
        elif name in _FLAGS_WITH_VALUE:
            if not equals:
                value = next(rest, "")
            _check_value(name, value)
            flags += [_LONG_FORM.get(name, name), value]
        elif argument in FLAGS:
            flags.append(argument)
        else:
            long_flags = [flag for flag in FLAGS if flag.startswith("--")]
            fix = did_you_mean(name, long_flags, "see --help")
            key = name.lstrip("-").replace("-", "_")
            value = value or next(rest, "...")
            meant = suggestions.for_key(key, value)
            if not meant and key not in commands() and kind_at(key) is not None and _PLAIN.fullmatch(value):
                meant = f"{key}={value}"
            if meant:
                fix = f"keys have no dashes: {meant}"
            elif key in commands():
                fix = f"a command comes first, without dashes: runner {key} ..."
            raise ConfigError(f"{argument}: unknown flag; {fix}")
    return flags, overrides


def _check_value(flag: str, value: str) -> None:
    choices = _FLAGS_OF_A_CHOICE.get(flag, ())
    if choices and value not in choices:
        raise ConfigError(f"{flag} {value}: must be one of {', '.join(choices)}; write {flag} {choices[0]}")
    if not value or value.startswith("-"):
        raise ConfigError(f"{flag}: needs a value; write {flag} <value>")
    _check_length(f"{flag} {value}", Path(value).name)
    if _LONG_FORM.get(flag, flag) == FOLDER_FLAG and not Path(value).is_dir():
        raise ConfigError(f"{flag} {value}: must be an existing folder; name one that has groups, as conf has")


def _check_length(text: str, name: str) -> None:
    """Rejects a name that no file can have: the error of the disk would name none of the user's keys."""
    if len(name.encode()) > _LONGEST_NAME:
        raise ConfigError(f"{short(text)}: has a name of more than {_LONGEST_NAME} bytes; check its spelling")


def _check_options(override: Override, text: str) -> None:
    """Rejects an option whose path leaves the folder of its group: any YAML file would become part of the config."""
    if isinstance(override.value(), Glob):  # it selects from the group's folder
        return
    value = override.value()
    options: list[object] = [value]
    if override.is_discrete_sweep():
        options = list(override.sweep_iterator())
    elif isinstance(value, list):  # as of `+experiment=[a,b]`
        options = list(value)
    for name in (override.key_or_group, *options):
        _check_length(text, str(name))
        path = PurePosixPath(str(name).replace("\\", "/"))
        if ".." in path.parts or path.is_absolute():
            problem = "must be an option in the folder of the group, not a path that leaves it"
            _, fix = suggestions.for_option(override.key_or_group, str(name))
            otherwise = "put options of your own into a folder, and name it with --config-dir"
            raise ConfigError(f"{short(text)}: {problem}; {fix or otherwise}")
    if isinstance(value, list) and override.key_or_group in _GROUPS:
        fix = f"name one, or all in a sweep (-m): {override.key_or_group}={','.join(map(str, options))}"
        raise ConfigError(f"{short(text)}: must be one option, not a list; {fix}")


def _check_spaces(overrides: Sequence[str]) -> None:
    """Rejects `mesh = batch8`, which is three arguments, each of which would be another mistake."""
    for before, text, after in zip(["", *overrides], overrides, [*overrides[1:], ""], strict=False):
        parts = [text]
        if text == "=":
            parts = [before, text, after]
        elif text.startswith("="):
            parts = [before, text]
        elif text.endswith("=") and "=" not in after:
            parts = [text, after]
        typed = " ".join(filter(None, parts))
        if typed != text:
            raise ConfigError(f"{short(typed)}: has a space beside the =; write {short(''.join(parts))}")
