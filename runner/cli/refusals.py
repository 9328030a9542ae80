"""The wording of refusals: what Hydra and OmegaConf say over many lines, in one that tells the fix."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError  # type: ignore[import-untyped]

from runner.cli import suggestions
from runner.cli.command_line import is_group, short, unreadable
from runner.config import search_path
from runner.config.search_path import options as options_of
from runner.errors import ConfigError, did_you_mean
from runner.host import paths
from runner.host.outputs import caused_by_disk, unwritable

_KINDS = {  # OmegaConf's types to words
    "int": "a whole number",
    "Integer": "a whole number",
    "float": "a number",
    "Float": "a number",
    "bool": "true or false",
    "Boolean": "true or false",
    "str": "a word",
    "String": "a word",
}


def one_line(error: Exception) -> str:
    """Puts a refusal into one line: key, value, what is allowed, the fix.

    Args:
      error: our own refusal, or one of Hydra's and OmegaConf's, whose messages span lines.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(error.missing_cfg_file, error.options)
    if isinstance(error, OverrideParseException):
        return str(unreadable(error.override))
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        place = f"{error.problem_mark.name}, line {error.problem_mark.line + 1},"
        return f"{place}: it is no YAML ({error.problem}); fix that line or the one before"
    disk = None if isinstance(error, ConfigError | HydraException) else caused_by_disk(error)
    if disk is not None:  # Hydra's own files, before the command
        return str(unwritable(disk))
    text = " ".join(str(error).split())
    for pattern, words in _PATTERNS:
        if found := re.search(pattern, text):
            return words(found, text)
    return text


def _missing(file: str, options: Sequence[str] | None) -> str:
    group, _, option = file.rpartition("/")
    typed = next((one for one in _typed() if one.lstrip("+~").replace("=", "/", 1) == file), f"{group}={option}")
    key, _, value = typed.lstrip("+~").partition("=")
    if options is None or not group:
        return f"--config-name {file}: there is no such config; drop it, or see --config-dir"
    names = [name for name in options if name] or options_of(key)
    return f"{short(typed)}: options are {', '.join(names)}; {_suggest(key, value, names)}"


def _suggest(group: str, option: str, options: list[str]) -> str:
    if (known := suggestions.option(group, option)) is not None:
        return known
    if option.lower() in options:
        return f"did you mean {group}={option.lower()}?"
    close = get_close_matches(option, options, n=1)
    if close:
        return f"did you mean {group}={close[0]}?"
    return (
        f"choose one, as {group}={options[0]}"
        if options
        else "install the package again, its conf folder is incomplete"
    )


def _not_in_defaults(found: re.Match[str], _text: str) -> str:
    return _unknown_key(found.group(1).partition("@")[0])


def _twice(found: re.Match[str], _text: str) -> str:
    group = found.group(1)
    given = next((one for one in _typed() if one.startswith(f"+{group}=")), f"+{group}")
    return f"{short(given)}: {group} has an option already; write {given.lstrip('+')}"


def _delete(found: re.Match[str], _text: str) -> str:
    key, _, value = found.group(1).partition("=")
    if value:
        return f"~{key}={value}: that is not what {key} holds; write {key}=<another>"
    return f"~{key}: no such key to take away; {_nearest(key)}"


def _append(found: re.Match[str], _text: str) -> str:
    given = _given(found.group(1))
    return f"{given}: {found.group(1)} is there already; write {given.lstrip('+')}"


def _several(found: re.Match[str], _text: str) -> str:
    given = short(found.group(1))
    value = found.group(1).partition("=")[2]
    key = given.partition("=")[0]
    plain = "(" not in value and not is_group(key)
    fix = f"add -m to run each, or write {key}=[{short(value)}] for a list" if plain else "add -m to run each"
    return f"{given}: these are several values for one run; {fix}"


def _wrong_kind(found: re.Match[str], text: str) -> str:
    """Words a value of a kind that the key can't hold, as a list for a mapping."""
    key = found.group(1).lstrip("+~").partition("=")[0]
    given = _given(key)
    enum = re.search(r"Invalid value '.*', expected one of \[(.*?)\]", text)
    plain = re.search(r"(?:could not be converted to |is not a valid |incompatible with type hint '?\W*)(\w+)", text)
    kind = _KINDS.get(plain.group(1), "") if plain else ""
    if enum:
        return f"{given}: one of {enum.group(1)}; write {key}={enum.group(1).split(',')[0]}"
    if "not Optional" in text or "is not optional" in text or kind:
        return f"{given}: {kind or 'it needs a value'}; write {key}=<{kind or 'value'}>, or drop it"
    if (told := _below_a_list(key)) is not None:
        return told
    if _holds_keys(key):
        return f"{given}: {key} holds keys, not a value of this kind; write {key}.name=value"
    return f"{given}: not a value of the kind that {key} holds; see python -m runner --cfg all"


def _no_option(_found: re.Match[str], _text: str) -> str:
    """Words null or a number where a group's option belongs."""
    groups = [one for one in _typed() if is_group(one.partition("=")[0])]
    given = next((one for one in groups if one.partition("=")[2] not in options_of(one.partition("=")[0])), "")
    key = given.partition("=")[0]
    return f"{short(given)}: options are {', '.join(options_of(key))}; name one of them, or leave {key} out"


def _no_choice(found: re.Match[str], _text: str) -> str:
    """Words an interpolation where a group's option belongs, which can tell of other groups' options alone."""
    given = next((one for one in _typed() if found.group(1) in one), found.group(1))
    key = given.lstrip("+~").partition("=")[0]
    return f"{short(given)}: options are {', '.join(options_of(key))}; write {key}=<option>"


def _no_interpolation(found: re.Match[str], _text: str) -> str:
    return f"{_given(found.group(2))}: its interpolation gives nothing (no key {found.group(1)}); fix it"


def _in_a_list(found: re.Match[str], text: str) -> str:
    """Words a word where a list's place belongs; the message does not tell the key."""
    named = (one for one in _typed() if f".{found.group(1)}" in one.partition("=")[0])
    return next((told for one in named if (told := _below_a_list(one.lstrip("+~").partition("=")[0]))), text)


def _below_a_list(key: str) -> str | None:
    """Returns the refusal of a key or a place below one that holds a list; None: it is not below one."""
    config = _known()
    for match in re.finditer(r"\.", key):
        above = key[: match.start()]
        if isinstance(_selected(config, above), ListConfig):
            return f"{_given(key)}: {above} holds a list, without this; write {above}=[...]"
    return None


_PATTERNS = (
    (r"Could not override '([^']+)'", _not_in_defaults),
    (r"Multiple values for (\S+?)\. ", _twice),
    (r"(\S+) appears more than once in the final defaults list", _twice),
    (r"Could not delete '([^']*)'", _delete),
    (r"Could not delete from config\. '([^']*)'", _delete),
    (r"Could not append to config\. An item is already at '([^']+)'", _append),
    (r"Ambiguous value for argument '(.*?)' 1\. ", _several),
    (r"Sweep parameters '(.*)' requires --multirun", _several),
    (r"Error merging override (\S+)", _wrong_kind),
    (r"invalid literal for int\(\) with base 10: '(.+)'", _in_a_list),
    (r"Config group override must be", _no_option),
    (r"Error resolving interpolation '(.+?)', possible", _no_choice),
    (r"Interpolation key '(.+?)' not found full_key: (\S+)", _no_interpolation),
)


def _typed() -> list[str]:
    return [one for one in sys.argv[1:] if not one.startswith("-")]


def _given(key: str) -> str:
    """Returns the argument that sets a key, or something below it, as it was typed."""
    found = next((one for one in _typed() if re.match(rf"[+~]*{re.escape(key)}(?![\w/])", one)), key)
    return short(found)


def _known() -> DictConfig:
    """Returns the config with the groups' options that were typed."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    groups = [one for one in _typed() if one.partition("=")[2] in options_of(one.partition("=")[0])]
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        try:
            return compose("config", overrides=[*search_path.searchpath(sys.argv[1:]), *groups])
        except (HydraException, OmegaConfBaseException, YAMLError):  # an option of the user's that can't be composed
            return compose("config")


def _selected(config: DictConfig, key: str) -> object:
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException:  # below a list, or without a value
        return None


def _holds_keys(key: str) -> bool:
    return isinstance(_selected(_known(), key), DictConfig)


def _nearest(key: str) -> str:
    return suggestions.key(key) or did_you_mean(key, _like(key, key_paths(_known())))


def _like(key: str, known: Sequence[str]) -> list[str]:
    """Returns the keys that may be meant: the same name in another group first, never the group of the key itself."""
    name = key.rpartition(".")[2]
    same = [path for path in known if path.rpartition(".")[2] == name]
    return same or [path for path in known if not key.startswith(f"{path}.") and not path.endswith("_target_")]


def _unknown_key(key: str) -> str:
    """Words the refusal of a key that the composed config lacks, with the nearest one that it has."""
    known = key_paths(_known())
    parent = key.rpartition(".")[0]
    siblings = [k for k in known if k.rpartition(".")[0] == parent]
    given = _given(key)
    if key in known:  # there, and no group: as a part of another's package, or a mapping without a place for it
        return f"{given}: {key} does not take this; write {key}=<value>, or +{key}.<key>=<value>"
    allowed = f"keys of {parent} are" if parent and siblings else "groups are"
    names = ", ".join(sorted(k.rpartition(".")[2] for k in (siblings or [k for k in known if "." not in k])))
    with_it = _options_with(parent, key.rpartition(".")[2])
    fix = suggestions.key(key) or (f"set {parent}={' or '.join(with_it)}, which has it" if with_it else _nearest(key))
    return f"{given}: no such key; {allowed} {names}; {fix}"


def _options_with(group: str, key: str) -> list[str]:
    """Returns the options of a group, if it is one, that have a key."""
    return [name for name in options_of(group) if key in _keys_of(f"{group}/{name}")] if group else []


def _keys_of(config: str) -> list[str]:
    try:
        return list(search_path.content_of(config))
    except (YAMLError, AttributeError, OSError):  # a file of the user's, which nobody has asked for
        return []


def key_paths(config: DictConfig) -> list[str]:
    """Returns every dotted key of a config, groups and leaves."""
    found: list[str] = []

    def walk(node: DictConfig, prefix: str) -> None:
        for key in map(str, node):
            found.append(f"{prefix}{key}")
            if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
                walk(node[key], f"{prefix}{key}.")

    walk(config, "")
    return found
