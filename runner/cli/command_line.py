"""The command line before Hydra reads it: flags and overrides in any order, and what can't be meant is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from runner.config import hydra_keys, renamed
from runner.config.search_path import FLAG, NAME_FLAG, folders
from runner.errors import ConfigError, did_you_mean, invalid
from runner.training.checkpoint.arguments import KEYS

_PLAIN = (
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
_VALUED = {
    **dict.fromkeys(("--cfg", "-c"), "job, hydra or all"),
    **dict.fromkeys(("--package", "-p"), "a part of the config, as trainer"),
    **dict.fromkeys(("--config-path", "-cp"), "a folder of configs in place of the program's"),
    **dict.fromkeys(("--config-name", "-cn"), "a config's name"),
    **dict.fromkeys(("--config-dir", "-cd"), "a folder of more configs"),
    **dict.fromkeys(("--info", "-i"), "all, config, defaults, defaults-tree, plugins or searchpath"),
}
_FOLDERS = (FLAG, "-cd")
_LONG = {"-cd": FLAG, "-cn": NAME_FLAG}  # by these a recorded command line is read
_FREE = ("mesh.axes", "layout.inputs", "tracking.tags")
_LONGEST = 200  # characters of an argument that are shown


def arranged(arguments: Sequence[str]) -> list[str]:
    """Returns the command line as Hydra takes it: flags first, since its parser knows overrides on one side only.

    Args:
      arguments: as typed, without the program.

    Raises:
      ConfigError: an unknown flag, one without its value, or an override that can't work whatever the config holds.
    """
    flags, overrides = _split(arguments)
    overrides = [renamed.argument(text) for text in overrides]
    parser = OverridesParser.create()
    for text in overrides:
        _check(text, parser, flags)
    return [*flags, *_free_names(overrides)]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    flags: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--":
            overrides += rest
        elif not argument.startswith("-"):
            overrides.append(argument)
        elif argument in _PLAIN:
            flags.append(argument)
        elif name in _VALUED:
            flags += [_LONG.get(name, name), _value(name, value if equals else next(rest, None))]
        else:
            known = [flag for flag in (*_PLAIN, *_VALUED) if flag.startswith("--")]
            fix = did_you_mean(name, known, "see python -m runner --help")
            raise ConfigError(f"{argument}: no such flag; flags are {', '.join(known)}; {fix}")
    return flags, overrides


def _value(name: str, value: str | None) -> str:
    allowed = _VALUED[name]
    if not value or value.startswith("-"):
        raise ConfigError(f"{name}: it needs a value, {allowed}; write {name} <value>")
    choices = allowed.replace(" or ", ", ").split(", ")
    if name in ("--cfg", "-c", "--info", "-i") and value not in choices:
        raise ConfigError(f"{name} {value}: one of {', '.join(choices)}; write {name} {choices[0]}")
    if name in _FOLDERS and not Path(value).is_dir():
        raise ConfigError(f"{name} {value}: no such folder; name one that holds groups, as conf does")
    return value


def _free_names(overrides: Sequence[str]) -> Iterator[str]:
    """Lets a command line name a mesh's axes and a run's tags freely; Hydra takes a new key for a mistake.

    Yields:
      `mesh.axes={...}` as what replaces the axes, `mesh.axes.model=2` as what sets or adds one.
    """
    for text in overrides:
        key = next((key for key in _FREE if text.startswith((f"{key}={{", f"{key}."))), None)
        if key is None:
            yield text
        elif text.startswith(f"{key}."):
            yield f"++{text}"
        else:
            yield f"~{key}"
            yield f"+{text}"


def _check(text: str, parser: OverridesParser, flags: Sequence[str]) -> None:
    try:
        one = parser.parse_override(text)
    except HydraException as error:
        raise unreadable(text) from error
    key = one.key_or_group
    if not key:
        raise ConfigError(f"'{short(text)}': it names no key; write key=value")
    if is_group(key):
        _check_option(text, one)
    if key.partition(".")[0].partition("/")[0] == "hydra":
        hydra_keys.check(text, one, multirun=any(flag in ("-m", "--multirun") for flag in flags))


def is_group(key: str) -> bool:
    """Returns whether a key names a group of configs, by what it looks like or by a folder that is there."""
    return "/" in key or ("." not in key and key not in KEYS and any((folder / key).is_dir() for folder in folders()))


def _check_option(text: str, one: Override) -> None:
    """Refuses an option that is no name, or whose path leaves the group's folder."""
    group = one.key_or_group
    leaves = _leaves(group)
    for option in _options(one):
        if isinstance(option, list | dict):
            raise invalid(group, short(_value_of(text)), problem="the name of one option", fix=f"write {group}=<name>")
        leaves = leaves or (isinstance(option, str) and _leaves(option))
    if leaves:
        raise invalid(
            group,
            short(_value_of(text)),
            problem=f"the name of an option of {group}, which lies in that group's folder",
            fix="give a folder of your own with --config-dir",
        )


def _options(one: Override) -> list[object]:
    value = one.value()
    if isinstance(value, Glob):  # chooses of what is there
        return []
    return list(one.sweep_iterator()) if one.is_discrete_sweep() else [value]


def _leaves(path: str) -> bool:
    parts = PurePosixPath(path.replace("\\", "/")).parts
    return ".." in parts or "~" in parts[:1] or path.startswith(("/", "\\")) or path[1:2] == ":"


def unreadable(text: str) -> ConfigError:
    """Words what Hydra's grammar can't read; a value with brackets inside, as a split has, needs quotes of its own."""
    key, equals, value = text.partition("=")
    name = key.lstrip("+~")
    if equals and hydra_keys.NAME.fullmatch(name) and hydra_keys.SLICED.fullmatch(value):
        fix = f"quote the value for Hydra and the shell: \"{key}='{value}'\""
    elif equals and hydra_keys.NAME.fullmatch(name) and value:
        fix = f"write {name}=value, lists as [a,b], and a value with other signs in quotes, as \"{key}='...'\""
    else:
        fix = "write key=value, lists as [a,b]"
    return ConfigError(f"'{short(text)}': not an override that can be read; {fix}")


def short(text: str) -> str:
    """Returns a text as a line can show it."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _value_of(text: str) -> str:
    return text.partition("=")[2]
