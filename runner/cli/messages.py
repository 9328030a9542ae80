"""Formats the errors of Hydra, OmegaConf, PyYAML and the disk as one line with a fix: the nearest key or option."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import get_origin

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from runner.checkpoint.arguments import key_of
from runner.cli import suggestions
from runner.cli.commands import commands
from runner.config import search_path, short_keys, texts
from runner.config.compose import compose
from runner.config.convert import KEYS_WITHOUT_GROUP
from runner.config.quoting import quoted
from runner.errors import ConfigError, in_one_line, listed, nearest, shown
from runner.host.outputs import caused_by_disk, unwritable
from runner.plan.checks.run import convert

_SEE_HELP = "see python -m runner --help {}"
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
# An override whose value a shell takes as it is within double quotes.
_TYPED = re.compile(r"[+~]*[\w.]+=[^$`!\\]+", re.ASCII)


def one_line(error: Exception, arguments: Sequence[str]) -> str:
    """Returns the message of an error of ours, Hydra, OmegaConf or PyYAML in one line: key, value, problem and fix.

    Flags of the command line may be among the arguments, beside the overrides that were composed.
    """
    if isinstance(error, ConfigError):
        return in_one_line(str(error))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _unknown_option(error.missing_cfg_file, error.options or (), arguments)
    if isinstance(error, OverrideParseException):
        return str(unreadable(error.override))
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        place = f"{error.problem_mark.name}, line {error.problem_mark.line + 1}"
        return f"{place}: invalid YAML ({error.problem}); check this line and the one before it"
    if not isinstance(error, HydraException):
        disk_error = caused_by_disk(error)
        if disk_error is not None:  # Hydra could not write its own files
            return str(unwritable(disk_error))
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = str(getattr(cause, "full_key", None) or "")
    if not key:
        return _of_hydra(in_one_line(str(error)), arguments)
    argument = _argument_of(key, arguments)
    parent = getattr(cause, "parent_node", None)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(parent, DictConfig):
        root = parent._get_root()
        assert isinstance(root, DictConfig)
        return _unknown_key(key, argument, root, arguments)
    if isinstance(parent, ListConfig):
        name = key.partition("[")[0]
        return f"{argument}: {name} is a list; set all of it: {name}=[...]"
    problem = in_one_line(str(getattr(cause, "msg", None) or cause).splitlines()[0])
    if isinstance(cause, InterpolationResolutionError):
        return f"{argument}: can't be resolved ({problem}); name a key that exists"
    return f"{argument}: {problem}; see python -m runner --cfg all"


def _of_hydra(text: str, arguments: Sequence[str]) -> str:
    """Returns an error of Hydra's, which has no key, with the argument that it is about, if its text names one."""
    several = re.match(r"Ambiguous value for argument '(.+?)=(.+?)' 1\.", text)
    if several:
        key = several[1].lstrip("+~")
        kind = texts.kind_at(key)
        # As typed: `texts.kept` has put numbers into quotes.
        value = re.sub(r"'([^']*)'", lambda found: found[1] if texts.is_number(found[1]) else found[0], several[2])
        is_sentence = any(re.search(r"\s", part.strip()) for part in value.split(","))
        if kind is str and is_sentence and "'" not in value and _TYPED.fullmatch(f"{key}={value}"):
            problem = "Hydra reads the comma as the end of a value"
            return f"{key}={value}: {problem}; {_in_quotes(key, value)}"
        value = re.sub(r"\s*,\s*", ",", several[2])
        swept = [one for one in arguments if re.fullmatch(r"[+~\w./]+=[\w.+-]+(,[\w.+-]+)+", one)]
        of_sweep = dict.fromkeys(map(shlex.quote, [f"{several[1]}={value}", *swept]))
        fix = f"to run each, type -m {' '.join(of_sweep)}"
        if kind is None or get_origin(kind) is list:
            fix += f", and for a list {several[1]}=[{several[2]}]"
        return f"{several[1]}={several[2]}: has several values, and one run takes one; {fix}"
    for argument in arguments:
        key, _, value = argument.lstrip("+~").partition("=")
        # Of a group whose value is not a name, Hydra names neither.
        if is_group(key) and value not in search_path.options(key):
            fix = _option_fix(key, value, f"leave {key} out to get the default", arguments)
            if text.startswith("Config group override"):
                text = "must be the name of an option"
            return f"{short(argument)}: {text}; {fix}"
        name = key.rpartition(".")[2]
        if f"'{name}'" in text or re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text):
            return f"{short(argument)}: {text}"
    return text


def _argument_of(key: str, arguments: Sequence[str]) -> str:
    """Returns the argument that sets a key, something below it or what holds it; the key if there is none."""
    key = key.replace("[", ".").replace("]", "")
    typed = [argument for argument in arguments if f"{key}.".startswith(f"{key_of(argument)}.")]
    below = [argument for argument in arguments if key_of(argument).startswith(f"{key}.")]
    # The most specific one: `engine.loop=host`, not `engine=jax`.
    return short(max(typed or below or [key], key=lambda argument: len(key_of(argument))))


def _unknown_option(file: str, options: Sequence[str], arguments: Sequence[str]) -> str:
    """Returns the message of an option of a group that has no file, as `mesh/batch9`."""
    if "/" not in file:
        return f"--config-name {file}: no such config; remove it, or name the folder that has it with --config-dir"
    group, _, option = file.rpartition("/")
    for argument in arguments:
        override = argument.lstrip("+~")
        if override.replace("=", "/", 1) == file:
            group, _, option = override.partition("=")
            break
    names = list(filter(None, options)) or search_path.options(group)
    fix = _option_fix(group, option, _SEE_HELP.format(group), arguments)
    return f"{short(f'{group}={option}')}: unknown option (options of {group}: {listed(sorted(names))}); {fix}"


def _unknown_key(key: str, argument: str, config: DictConfig, arguments: Sequence[str]) -> str:
    """Returns the message of a key that the config lacks, with what to type in place of the argument."""
    parent, _, name = key.rpartition(".")
    known: dict[str, str] = {}
    siblings = []
    for path in key_paths(config):
        is_of_hydra = path.startswith("hydra") and not key.startswith("hydra.")
        if not is_of_hydra and not key.startswith(f"{path}."):
            above, _, last = path.rpartition(".")
            known[path] = last
            if above == parent:
                siblings.append(last)
    title = "groups"
    with_key = []
    if parent:
        title = f"keys of {parent}"
        options = search_path.options(parent)
        with_key = [option for option in options if name in search_path.readable_content_of(f"{parent}/{option}")]
    _, equals, value = argument.partition("=")
    found = suggestions.for_key(name, value)
    if with_key and (not found or key_of(found) == key):
        owners = f"{parent}={' or '.join(with_key)}"
        verb = "has" if len(with_key) == 1 else "have"
        fix = f"set {owners}, which {verb} it"
        # To replace an option that the user chose is no fix: it has keys that the other one lacks.
        if parent in map(key_of, arguments):
            fix = f"only {owners} {verb} it"
    else:
        near = _nearest_key(key, known, siblings)
        if not found and near:
            # What is typed below a misspelled mapping stays: mesh.axis.batch=8.
            found = f"{near}{key_of(argument).removeprefix(key)}{equals}{value}"
        fix = _SEE_HELP.format(parent).rstrip()
        if found:
            fix = _key_fix(found, argument, arguments)
    return f"{argument}: unknown key ({title}: {listed(sorted(siblings))}); {fix}"


def _nearest_key(key: str, known: Mapping[str, str], siblings: Sequence[str]) -> str | None:
    """Returns the key that is meant by one that the config lacks; `known` are its own, each with its last part."""
    parent, _, name = key.rpartition(".")
    sibling = nearest(name, siblings)
    if parent and sibling:
        return f"{parent}.{sibling}"
    alike = []
    for path, known_name in known.items():
        if known_name == name:
            return path
        # Keys of one group are alike by its name alone.
        if "_target_" not in path and nearest(name, [known_name]):
            alike.append(path)
    return nearest(key, alike)


def _fix_of(suggestion: str, argument: str, arguments: Sequence[str]) -> str:
    """Returns what the error suggests that overrides in place of an argument lead to; empty: they are accepted."""
    typed = [one for one in arguments if not one.startswith("-") and "=" in one and short(one) != argument]
    suggested = re.split(r" (?=[\w./]+=)", suggestion)
    try:
        convert(compose([*typed, *short_keys.arranged(suggested)]))
    # Of a group's number (layout=8), Hydra raises a ValueError; so is a ConfigError.
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        line = one_line(error, suggested)
        # Only the value is wrong, so that one suggestion has both: the key and a value that it takes.
        value = re.fullmatch(rf"{re.escape(suggested[-1])}: .*; did you mean ([^ =]+)\?", line)
        if value:
            return f"did you mean {suggestion.rpartition('=')[0]}={value[1]}?"
        # Any other error is of what was typed beside the argument.
        if line.startswith(re.split("[.=]", suggested[-1])[0]):
            return line.partition("; ")[2]
    return ""


def _key_fix(suggestion: str, argument: str, arguments: Sequence[str]) -> str:
    """Returns the fix that names another key, or the right value for it."""
    key = key_of(suggestion.split()[-1])
    # The key of a preset's file has no value to type.
    fix = _fix_of(suggestion, argument, arguments) if "=" in suggestion else ""
    if f"{key}=" in fix or f"{key}." in fix:
        return fix
    return f"did you mean {suggestion}? {fix}".rstrip()


def _option_fix(group: str, option: str, otherwise: str, arguments: Sequence[str]) -> str:
    found, fix = suggestions.for_option(group, option)
    if found and "?" in fix:
        fix = f"{fix} {_fix_of(found, f'{group}={option}', arguments)}".rstrip()
    return fix or otherwise


def is_group(key: str) -> bool:
    """Returns whether a key is that of a config group: by its form, or because there is such a folder."""
    if "/" in key:
        return True
    if "." in key or key in KEYS_WITHOUT_GROUP:
        return False
    return any((folder / key).is_dir() for folder in search_path.folders())


def unreadable(text: str) -> ConfigError:
    """Returns the error of an override that Hydra's grammar rejects; the fix has a text's value in quotes."""
    if text in commands():
        return ConfigError(f"{text}: a command comes first; write runner {text} ...")
    if text == "sweep":
        return ConfigError("sweep: no command; a sweep is runner -m key=1,2")
    key, _, value = text.partition("=")
    fix = "write key=value, lists as [a,b]"
    name = key.lstrip("+~").rstrip()
    if name != key.lstrip("+~") and _NAME.fullmatch(name):
        return ConfigError(f"{short(text)}: has a space beside the =; write {name}={value.strip()}")
    if name == "name":
        cleaned = re.sub(r"[^\w.-]+", "_", value, flags=re.ASCII).strip("_.-")
        fix = f"set name={cleaned or 'exp1'}"
    elif value and _TYPED.fullmatch(text) and texts.kind_at(name) in (str, None):
        fix = _in_quotes(name, value.strip("'\""))
    return ConfigError(f"'{short(text)}': can't be parsed as an override; {fix}")


def _in_quotes(key: str, text: str) -> str:
    return f'put the value in quotes for Hydra, and all of it for the shell: "{key}={quoted(text)}"'


def short(text: str) -> str:
    """Returns a text as a line can show it."""
    return shown(" ".join(text.split()))


def key_paths(config: DictConfig, prefix: str = "") -> list[str]:
    """Returns every dotted key of a config, groups and leaves."""
    paths = []
    for name in map(str, config):
        paths.append(f"{prefix}{name}")
        has_no_keys = OmegaConf.is_missing(config, name) or OmegaConf.is_interpolation(config, name)
        if not has_no_keys and isinstance(config[name], DictConfig):
            paths += key_paths(config[name], f"{prefix}{name}.")
    return paths
