"""The command line before Hydra reads it: flags and overrides in any order, checked by their form alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from runner.checkpoint.arguments import KEYS, MULTIRUN
from runner.config import free_keys, hydra_keys, short_keys, texts
from runner.config.search_path import FLAG, NAME_FLAG, folders
from runner.errors import ConfigError, did_you_mean, invalid
from runner.host.commands import command_module

FLAGS_WITHOUT_VALUE = (
    "--help",
    "-h",
    "--hydra-help",
    "--version",
    "--resolve",
    "--run",
    "-r",
    "--multirun",
    "-m",
    "--shell-completion",
    "-sc",
)
# Flag -> what its value is. Hydra's --experimental-rerun is left out: it would unpickle a file.
FLAGS_WITH_VALUE = {
    **dict.fromkeys(("--cfg", "-c"), "job, hydra or all"),
    **dict.fromkeys(("--package", "-p"), "part of the config, as trainer"),
    **dict.fromkeys(("--config-name", "-cn"), "name of a config"),
    **dict.fromkeys(("--config-dir", "-cd"), "folder of more configs"),
    **dict.fromkeys(("--info", "-i"), "all, config, defaults, defaults-tree, plugins or searchpath"),
}
_FLAGS_OF_A_CHOICE = ("--cfg", "-c", "--info", "-i")
# Flags with which Hydra prints something and runs nothing.
PRINTING_FLAGS = ("--help", "-h", "--hydra-help", "--shell-completion", "-sc", *_FLAGS_OF_A_CHOICE)
_OF_PRINTING = ("--resolve", "--package", "-p")
_FLAGS_OF_A_FOLDER = (FLAG, "-cd")
# Recorded command lines are searched for the long form only.
_LONG_FORM = {"-cd": FLAG, "-cn": NAME_FLAG}
_SHOWN_CHARACTERS = 200  # of an argument: longer ones would fill the terminal, and their end says nothing new


def arranged(arguments: Sequence[str]) -> list[str]:
    """Returns the command line as Hydra takes it: flags first, since its parser knows overrides on one side only.

    Raises:
      ConfigError: an unknown flag, a flag without its value, an override that is invalid in every config, or the short
        key of another command.
    """
    flags, overrides = split(arguments)
    for flag in _OF_PRINTING:
        if flag in flags and set(PRINTING_FLAGS).isdisjoint(flags):
            raise ConfigError(f"{flag}: needs --cfg; add --cfg job")
    module = command_module()
    overrides = [texts.kept(short_keys.typed_argument(text, module)) for text in overrides]
    parser = OverridesParser.create()
    is_multirun = any(flag in MULTIRUN for flag in flags)
    for text in overrides:
        _check(text, parser, is_multirun=is_multirun)
    return [*flags, *free_keys.arranged(overrides)]


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the flags with their values, each an argument of its own, and the overrides.

    Raises:
      ConfigError: an unknown flag, or one without its value.
    """
    flags: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--":
            overrides += rest
        elif not argument.startswith("-"):
            overrides.append(argument)
        elif argument in FLAGS_WITHOUT_VALUE:
            flags.append(argument)
        elif name in FLAGS_WITH_VALUE:
            if not equals:
                value = next(rest, "")
            flags += [_LONG_FORM.get(name, name), _checked_value(name, value)]
        else:
            long_flags = [flag for flag in (*FLAGS_WITHOUT_VALUE, *FLAGS_WITH_VALUE) if flag.startswith("--")]
            fix = did_you_mean(name, long_flags, "see python -m runner --help")
            raise ConfigError(f"{argument}: unknown flag; {fix}")
    return flags, overrides


def _checked_value(flag: str, value: str) -> str:
    description = FLAGS_WITH_VALUE[flag]
    if not value or value.startswith("-"):
        raise ConfigError(f"{flag}: needs a value; write {flag} <{description}>")
    choices = description.replace(" or ", ", ").split(", ")
    if flag in _FLAGS_OF_A_CHOICE and value not in choices:
        raise ConfigError(f"{flag} {value}: must be {description}; write {flag} {choices[0]}")
    if flag in _FLAGS_OF_A_FOLDER and not Path(value).is_dir():
        raise ConfigError(f"{flag} {value}: must be an existing folder; name one that has groups, as conf has")
    return value


def _check(text: str, parser: OverridesParser, *, is_multirun: bool) -> None:
    try:
        override = parser.parse_override(text)
    except (HydraException, ValueError) as error:  # Python reads no integer of more than 4,300 digits
        raise unreadable(text) from error
    key = override.key_or_group
    if not key:
        raise ConfigError(f"'{short(text)}': has no key; write key=value")
    if is_group(key):
        _check_option(text, override)
    if key.partition(".")[0].partition("/")[0] == "hydra":
        hydra_keys.check(text, override, multirun=is_multirun)


def is_group(key: str) -> bool:
    """Returns whether a key is that of a config group: by its form, or because there is such a folder."""
    if "/" in key:
        return True
    if "." in key or key in KEYS:
        return False
    return any((folder / key).is_dir() for folder in folders())


def _check_option(text: str, override: Override) -> None:
    """Rejects an option that is not a name, or whose path leaves the folder of its group."""
    group = override.key_or_group
    value = short(text.partition("=")[2])
    leaves_folder = _leaves_folder(group)
    for option in _options(override):
        if isinstance(option, list | dict):
            raise invalid(group, value, problem="must be the name of one option", fix=f"write {group}=<name>")
        if isinstance(option, str) and _leaves_folder(option):
            leaves_folder = True
    if leaves_folder:
        raise invalid(
            group,
            value,
            problem=f"must be an option in the folder of {group}, not a path that leaves it",
            fix="put options of your own into a folder, and name it with --config-dir",
        )


def _options(override: Override) -> list[object]:
    """Returns the options that an override names: none of a glob, which selects from the group's folder."""
    value = override.value()
    if isinstance(value, Glob):
        return []
    if override.is_discrete_sweep():
        return list(override.sweep_iterator())
    return [value]


def _leaves_folder(path: str) -> bool:
    parts = PurePosixPath(path.replace("\\", "/")).parts
    has_drive = path[1:2] == ":"
    return ".." in parts or "~" in parts[:1] or path.startswith(("/", "\\")) or has_drive


def unreadable(text: str) -> ConfigError:
    """Returns the error of an override that Hydra's grammar rejects.

    A value with brackets inside, as the split `train[:5000]`, needs quotes of its own.
    """
    key, equals, value = text.partition("=")
    name = key.lstrip("+~")
    has_name = bool(equals) and hydra_keys.NAME.fullmatch(name) is not None
    if has_name and hydra_keys.SLICED.fullmatch(value):
        fix = f"quote the value for Hydra and the shell: \"{key}='{value}'\""
    elif has_name and value:
        fix = f"write {name}=value, lists as [a,b], and a value with other signs in quotes, as \"{key}='...'\""
    else:
        fix = "write key=value, lists as [a,b]"
    return ConfigError(f"'{short(text)}': can't be parsed as an override; {fix}")


def short(text: str) -> str:
    """Returns a text as a line can show it."""
    line = " ".join(text.split())
    if len(line) > _SHOWN_CHARACTERS:
        line = f"{line[:_SHOWN_CHARACTERS]}..."
    return line
