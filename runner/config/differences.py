"""Differences of a config from the defaults, as a person would type them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.compose import compose_again, default_choices
from runner.config.convert import choices, flatten

# The keys that a preset sets are shown as if they were typed.
_PRESET = "experiment"


def differences(composed: DictConfig, content: Mapping[str, Any]) -> list[str]:
    """Returns the overrides that make a run's config of the defaults, whoever set them.

    They are the preset, groups whose option is not the default one, and keys whose value is not their option's.
    `content` is the config resolved, as plain values and without secrets.
    """
    default = default_choices()
    preset = []
    typed = []
    for group, option in choices().items():
        if str(default.get(group)) == option:
            continue
        override = f"{group}={option}"
        if group == _PRESET:
            preset.append(override)
        else:
            typed.append(override)
    # Raw values are compared, as an interpolation may give another value each time; what is shown is resolved.
    without_keys = compose_again(typed)
    before = dict(flatten(_raw(without_keys)))
    now = dict(flatten(_raw(composed)))
    values = dict(flatten(content))
    # A key that is null by default takes a whole mapping, see `conf/task/several.yaml`.
    mappings = [key for key in before if before[key] is None and key not in now and _begins(key, now)]
    changed = []
    for key in mappings:
        changed.append(f"{key}={_typed(_at(key, content))}")
    for key, value in values.items():
        if key not in now or any(key.startswith(f"{mapping}.") for mapping in mappings):
            continue
        is_unchanged = key in before and (before[key] == now[key] or _is_computed_default(without_keys, key, value))
        if not is_unchanged:
            changed.append(f"{key}={_typed(value)}")
    removed = []
    for key in before:
        # Groups that are not part of the content, such as `sweep`, are not removed keys.
        if key not in now and not _begins(key, now) and key.partition(".")[0] in content:
            removed.append(f"~{key}")
    return [*preset, *typed, *changed, *removed]


def _is_computed_default(config: DictConfig, key: str, value: object) -> bool:
    """Returns whether a value is what an interpolation gives for its key, such as the default of `trainer.epochs`."""
    group, _, name = key.rpartition(".")
    parent = OmegaConf.select(config, group)
    if not isinstance(parent, DictConfig) or not OmegaConf.is_interpolation(parent, name):
        return False
    try:
        return bool(parent[name] == value)
    except OmegaConfBaseException:
        return False


def _begins(key: str, keys: Iterable[str]) -> bool:
    """Returns whether a key is the beginning of others: those of a mapping that was empty."""
    return any(other.startswith(f"{key}.") for other in keys)


def _at(key: str, content: Mapping[str, Any]) -> object:
    """Returns the value of a dotted key."""
    value: Any = content
    for name in key.split("."):
        value = value[name]
    return value


def _raw(config: DictConfig) -> dict[str, Any]:
    content = OmegaConf.to_container(config)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items() if key != "hydra"}


def _typed(value: object) -> str:
    """Returns a value as Hydra's grammar has it, such as `null` or `[a, b]`."""
    if isinstance(value, Mapping):
        entries = [f"{key}: {_typed(entry)}" for key, entry in value.items()]
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_typed, value))}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
