"""Checks overrides against the config that their groups compose to, and finds the invalid one.

Hydra composes a config and applies overrides in one step, and its errors are texts of many lines. When it fails, the
overrides are parsed with its own parser and checked here one by one, in the order in which they were typed. A command
line that is valid costs nothing: to check it beforehand would compose a config once more, 0.13 s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import (
    BooleanNode,
    DictConfig,
    EnumNode,
    FloatNode,
    IntegerNode,
    ListConfig,
    Node,
    OmegaConf,
    StringNode,
    open_dict,
    read_write,
)
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from runner.cli import suggestions
from runner.cli.command_line import is_group, short, split
from runner.config import search_path
from runner.config.compose import compose
from runner.config.search_path import options as options_of
from runner.errors import ConfigError, did_you_mean
from runner.training.checkpoint.arguments import MULTIRUN, key_of

_MOST_NAMES = 10  # in a message; the reader who needs more has --help
_NEAREST_NAMES = 3  # of more keys than that
# Hydra raises a ValueError where an option is of another type than a string.
_COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)
# Types of OmegaConf's nodes -> how a message calls them, and a value to type.
_TYPES: tuple[tuple[type[Node], str, str], ...] = (
    (BooleanNode, "true or false", "true"),
    (IntegerNode, "an integer", "1"),
    (FloatNode, "a number", "0.5"),
    (StringNode, "a string", "name"),
)


def first_fault(arguments: Sequence[str]) -> str | None:
    """Returns the message of the first override that is invalid; None if each of them is valid by itself.

    Args:
      arguments: overrides, with flags of the command line among them or not.
    """
    try:
        flags, texts = split(arguments)
        overrides = OverridesParser.create().parse_overrides(texts)
    except (ConfigError, HydraException):  # a folder of options may hold a config that is wrong in itself
        return None
    if not texts:
        return None
    base = _base(texts, overrides)
    is_multirun = any(flag in MULTIRUN for flag in flags) or _mode(base, overrides) == "MULTIRUN"
    for text, override in zip(texts, overrides, strict=True):
        if override.is_sweep_override() and not is_multirun:
            return _several_values(text)
        if is_group(override.key_or_group):
            fault = _group_fault(text, override, base)
        else:
            fault = _key_fault(text, override, base)
        if fault is not None:
            return fault
    # Last, because an interpolation of another group's option is valid: here nothing else is left.
    for text in texts:
        if "${" in _value_of(text) and is_group(key_of(text)):
            return _group_interpolation(text)
    return None


def argument_of(key: str, arguments: Sequence[str]) -> str:
    """Returns the argument that sets a key, or something below it, as it was typed; the key if there is none."""
    pattern = re.compile(rf"[+~]*{re.escape(key)}(?![\w/])")
    typed = next((argument for argument in arguments if pattern.match(argument)), key)
    return short(typed)


def unknown_option(file: str, options: Sequence[str], arguments: Sequence[str]) -> str:
    """Returns the message of an option of a group that has no file.

    Args:
      file: the config that Hydra looked for, as `mesh/batch9`.
      options: those that the group has.
      arguments: overrides and flags.
    """
    group, _, option = file.rpartition("/")
    if not group:
        return f"--config-name {file}: no such config; remove it, or name the folder that has it with --config-dir"
    text = f"{group}={option}"
    for argument in arguments:
        if argument.lstrip("+~").replace("=", "/", 1) == file:
            text = argument
    key, _, value = text.lstrip("+~").partition("=")
    names = [name for name in options if name] or options_of(key)
    return f"{short(text)}: unknown option ({_of(key, names)}); {_fix_of_option(key, value, names)}"


def key_paths(config: DictConfig) -> list[str]:
    """Returns every dotted key of a config, groups and leaves."""
    paths: list[str] = []

    def walk(node: DictConfig, prefix: str) -> None:
        for name in map(str, node):
            paths.append(f"{prefix}{name}")
            has_no_keys = OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name)
            if not has_no_keys and isinstance(node[name], DictConfig):
                walk(node[name], f"{prefix}{name}.")

    walk(config, "")
    return paths


def _base(texts: Sequence[str], overrides: Sequence[Override]) -> DictConfig:
    """Returns the config that the typed options compose to, without any other override."""
    folders = search_path.searchpath(texts)
    chosen: list[str] = []
    known: list[str] = []  # those of them that are a file
    for text, override in zip(texts, overrides, strict=True):
        names_one_option = not override.is_sweep_override() and not override.is_delete()
        if names_one_option and is_group(override.key_or_group):
            chosen.append(text)
            if _value_of(text) in options_of(key_of(text)):
                known.append(text)
    # The first that composes: a launcher of another package has options that are not in a folder of ours, a typed
    # option may be the one that is wrong, and so may a folder.
    for attempt in ([*folders, *chosen], [*folders, *known], folders):
        try:
            return _opened(compose(attempt, with_hydra=True))
        except _COMPOSITION_ERRORS:
            continue
    return _opened(compose([], with_hydra=True))


def _opened(config: DictConfig) -> DictConfig:
    OmegaConf.set_readonly(config, False)
    OmegaConf.set_readonly(config.hydra, False)
    return config


def _mode(base: DictConfig, overrides: Sequence[Override]) -> str:
    for override in reversed(overrides):
        if override.key_or_group == "hydra.mode":
            return str(override.value())
    mode = OmegaConf.select(base, "hydra.mode")
    return "" if mode is None else str(mode.name)


def _several_values(text: str) -> str:
    key = key_of(text)
    value = _value_of(text)
    fix = "add -m to run each"
    is_plain_list = "(" not in value and not is_group(key)
    if is_plain_list:
        fix = f"{fix}, or write {key}=[{short(value)}] for a list"
    return f"{short(text)}: has several values, and one run takes one; {fix}"


def _group_fault(text: str, override: Override, base: DictConfig) -> str | None:
    """Returns what is wrong with an override of a group; its option is known, or another error says that it is not."""
    group = override.key_or_group
    choices: Mapping[str, str | None] = base.hydra.runtime.choices
    place = group
    if override.package:
        place = f"{group}@{override.package}"
    value = override.value()
    if override.is_delete():
        if place not in choices:
            return f"~{place}: unknown key; {_nearest(group, base)}"
        if value is not None and value != choices[place]:
            return f"{short(text)}: {place} is {choices[place]}; write {place}=<option> to change it"
        return None
    if override.is_add():
        # With its own default, Hydra accepts it.
        default = _default_options().get(group, value)
        if default != value:
            state = "is in the defaults" if default is None else "has an option already"
            return f"{short(text)}: {group} {state}; write {text.lstrip('+')}"
        return None
    if place not in choices:
        return _unknown_key(group, text, base)
    if value in (None, "???"):
        return f"{short(text)}: a group needs an option; leave {group} out to get the default"
    if not isinstance(value, str) and not override.is_sweep_override():
        return f"{short(text)}: must be the name of an option ({_of(group, options_of(group))}); write {group}=<name>"
    return None


def _default_options() -> dict[str, str | None]:
    """Returns group -> option without any override; None: the defaults name the group and no option."""
    choices: Mapping[str, str | None] = compose([], with_hydra=True).hydra.runtime.choices
    return dict(choices)


def _key_fault(text: str, override: Override, base: DictConfig) -> str | None:
    """Returns what is wrong with an override of a key; a valid one is applied to the config."""
    key = override.key_or_group
    list_key = _list_above(key, base)
    if list_key is not None:
        return f"{short(text)}: {list_key} is a list; set all of it: {list_key}=[...]"
    if override.package is not None:
        return _unknown_key(key, text, base)
    exists = _exists(key, base)
    present = _selected(key, base)
    value = None
    if not override.is_sweep_override():
        value = override.value()
    if override.is_delete():
        if not exists:
            return f"~{key}: unknown key; {_nearest(key, base)}"
        if value is not None and value != present:
            return f"{short(text)}: {key} is {present}; write {key}=<value> to change it"
        if present is None:
            return f"{short(text)}: {key} is null, and only a value can be deleted; remove ~{key}"
        _delete(key, base)
        return None
    if override.is_add() and present is not None and not isinstance(value, dict | list):
        return f"{short(text)}: {key} exists already; write {text.lstrip('+')}"
    if not exists and not override.is_add() and not override.is_force_add():
        return _unknown_key(key, text, base)
    if override.is_sweep_override():
        return None
    adds_keys = override.is_add() or override.is_force_add()
    unknown = _first_unknown(key, value, base)
    if unknown is not None and not adds_keys:
        return _unknown_key(unknown, text, base)
    try:
        with read_write(base), open_dict(base):
            OmegaConf.update(base, key, value, merge=True, force_add=True)
    except OmegaConfBaseException:
        return _wrong_type(text, key, value, base)
    return None


def _first_unknown(key: str, value: object, base: DictConfig) -> str | None:
    """Returns the first key of a typed mapping that the config lacks; None: it has all, or takes any."""
    present = _selected(key, base)
    if not isinstance(value, dict) or not isinstance(present, DictConfig):
        return None
    for name, entry in value.items():
        path = f"{key}.{name}"
        if name not in list(present.keys()):
            return path
        unknown = _first_unknown(path, entry, base)
        if unknown is not None:
            return unknown
    return None


def _wrong_type(text: str, key: str, value: object, base: DictConfig) -> str:
    parent, name = _parent(key, base)
    node = None
    if isinstance(parent, DictConfig):
        node = parent._get_node(name)  # the node itself, which has the type, where `parent[name]` is its value
    if isinstance(value, str) and "${" in value:
        return f"{short(text)}: can't be parsed as an interpolation; write it as ${{group.key}}"
    if isinstance(node, DictConfig):
        return f"{short(text)}: {key} holds keys and takes no single value; set one of them, as {key}.name=value"
    if isinstance(node, EnumNode):
        names = list(node.enum_type.__members__)
        return f"{short(text)}: must be one of {', '.join(names)}; set {key}={names[0]}"
    for kind, description, example in _TYPES:
        if isinstance(node, kind):
            return f"{short(text)}: must be {description}; set {key}={example}"
    if isinstance(node, ListConfig):
        return f"{short(text)}: must be a list; set all of it: {key}=[...]"
    return f"{short(text)}: has not the type that {key} needs; see python -m runner --cfg all"


def _unknown_key(key: str, text: str, base: DictConfig) -> str:
    """Returns the message of a key that the config lacks, with the nearest one that it has."""
    known = key_paths(base)
    if not key.startswith("hydra."):
        known = _own_keys(known)
    parent, _, name = key.rpartition(".")
    if key in known:  # a group's key with a package, or a part of the config that is not a group
        return f"{short(text)}: {key} has no options; write {key}=<value>, or +{key}.<key>=<value>"
    siblings: list[str] = []
    for path in known:
        path_parent, _, path_name = path.rpartition(".")
        if path_parent == parent:
            siblings.append(path_name)
    # The keys at the top, which have no parent, are the groups.
    title = "groups"
    if parent and siblings:
        title = f"keys of {parent}"
    elif parent:
        siblings = [path for path in known if "." not in path]
    names = _listed(title, siblings)
    if parent and len(siblings) > _MOST_NAMES:
        # More names would hide the fix.
        nearest = get_close_matches(name, siblings, n=_NEAREST_NAMES)
        names = f"{title}: {len(siblings)}, see --help"
        if nearest:
            names = f"{title}: {', '.join(nearest)} and {len(siblings) - len(nearest)} more, see --help"
    options = _options_with(parent, name)
    if options:
        has = "have"
        if len(options) == 1:
            has = "has"
        fix = f"set {parent}={' or '.join(options)}, which {has} it"
    else:
        fix = _nearest(key, base)
    return f"{short(text)}: unknown key ({names}); {fix}"


def _nearest(key: str, base: DictConfig) -> str:
    """Returns the fix for a key that is not there: the same name in another group first, else a similar one."""
    fix = suggestions.key(key)
    if fix is not None:
        return fix
    known = _own_keys(key_paths(base))
    name = key.rpartition(".")[2]
    same_name: list[str] = []
    others: list[str] = []
    for path in known:
        if path.rpartition(".")[2] == name:
            same_name.append(path)
        # Never the group of the key itself, and no builder, which is near to everything.
        if not key.startswith(f"{path}.") and not path.endswith("_target_"):
            others.append(path)
    if same_name or not isinstance(_parent(key, base)[0], DictConfig):
        return did_you_mean(key, same_name or others)
    # In a group that exists, the last name is wrong: all keys of the group are near to the whole key.
    close_names = get_close_matches(name, {path.rpartition(".")[2] for path in others}, n=1)
    return did_you_mean(key, [path for path in others if path.rpartition(".")[2] in close_names])


def _own_keys(paths: Iterable[str]) -> list[str]:
    """Returns the keys that are not of Hydra's own part, to which a misspelt key of ours may be near."""
    return [path for path in paths if path != "hydra" and not path.startswith("hydra.")]


def _options_with(group: str, key: str) -> list[str]:
    """Returns the options of a group, if it is one, that have a key."""
    if not group:
        return []
    return [name for name in options_of(group) if key in search_path.readable_content_of(f"{group}/{name}")]


def _fix_of_option(group: str, option: str, options: Sequence[str]) -> str:
    """Returns the fix for an unknown option of a group."""
    fix = suggestions.option(group, option)
    if fix is not None:
        return fix
    if option.lower() in options:
        return f"did you mean {group}={option.lower()}?"
    close = get_close_matches(option, options, n=1)
    if close:
        return f"did you mean {group}={close[0]}?"
    if options:
        return f"choose one, as {group}={options[0]}"
    return "install the package again, its conf folder is incomplete"


def _group_interpolation(text: str) -> str:
    """Returns the message of an interpolation as a group's option; Hydra resolves it from other options alone."""
    group = key_of(text)
    problem = f"can't be resolved to an option ({_of(group, options_of(group))})"
    return f"{short(text)}: {problem}; write {group}=<option>"


def _of(group: str, options: Iterable[str]) -> str:
    return _listed(f"options of {group}", options)


def _listed(what: str, names: Iterable[str]) -> str:
    """Returns names in a message, sorted: at most ten, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - _MOST_NAMES
    shown = ", ".join(ordered[:_MOST_NAMES])
    if more > 0:
        shown += f" and {more} more, see --help"
    return f"{what}: {shown}"


def _value_of(text: str) -> str:
    return text.partition("=")[2]


def _exists(key: str, base: DictConfig) -> bool:
    parent, name = _parent(key, base)
    # `name in parent` would be false for a value that is missing or can't be resolved.
    return isinstance(parent, DictConfig) and name in list(parent.keys())


def _parent(key: str, base: DictConfig) -> tuple[object, str]:
    """Returns the node that a key is in, and the key's name there."""
    path, _, name = key.rpartition(".")
    if not path:
        return base, name
    return _selected(path, base), name


def _selected(key: str, base: DictConfig) -> object:
    """Returns the value of a key; None where there is none, or it can't be resolved."""
    try:
        return OmegaConf.select(base, key)
    except OmegaConfBaseException:
        return None


def _list_above(key: str, base: DictConfig) -> str | None:
    """Returns the key of the list that a key would be in; None: it is in none."""
    for match in re.finditer(r"\.", key):
        above = key[: match.start()]
        if isinstance(_selected(above, base), ListConfig):
            return above
    return None


def _delete(key: str, base: DictConfig) -> None:
    parent, name = _parent(key, base)
    assert isinstance(parent, DictConfig)
    with read_write(parent), open_dict(parent):
        del parent[name]
