"""Conversions of the composed YAML to the typed run config and to plain values. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from runner.config import options, texts
from runner.config.build import build, check_type, fields_of, unknown_key
from runner.config.schema import MeshConfig, RunConfig, TrackingConfig
from runner.config.values import leaves
from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import secrets

# Keys of the command line that are in no group.
KEYS_WITHOUT_GROUP = ("resume", "name", "branch", "run")
_GROUPS = {
    spec.name: cast("type", spec.default_factory) for spec in fields(RunConfig) if spec.name not in KEYS_WITHOUT_GROUP
}

# OmegaConf's mark of a value that must be set.
_MISSING = "???"


def typed_config(composed: DictConfig) -> RunConfig:
    """Converts the composed config, whose interpolations are resolved, to dataclasses; no values are checked.

    Raises:
      ConfigError: an unknown key, a missing value or a wrong type.
    """
    for key in composed:
        if key not in _GROUPS and key not in KEYS_WITHOUT_GROUP:
            raise _unknown_group(str(key), composed)
    content = {name: convert_group(name, composed) for name in _GROUPS}
    for key in KEYS_WITHOUT_GROUP:
        if OmegaConf.is_missing(composed, key):
            _check_missing(_MISSING, f"{key}.")
        try:
            value = composed.get(key)
        except InterpolationResolutionError as error:
            raise _unresolved(key, error) from error
        if OmegaConf.is_interpolation(composed, key) and value is not None:
            value = str(value)
        check_type(str | None, value, key)
        content[key] = value
    return RunConfig(**content)


def _unresolved(key: str, error: InterpolationResolutionError) -> ConfigError:
    return ConfigError(f"{key}: its interpolation can't be resolved ({_reason(error)}); correct or remove it")


def _unknown_group(key: str, composed: DictConfig) -> ConfigError:
    if key == "experiment":
        # Without `@package _global_`, Hydra puts the keys of a preset below the name of its group.
        return ConfigError(
            "experiment: the keys of the preset must apply to the whole config; write `# @package _global_` as the "
            "first line of its file"
        )
    problem = f"unknown group; groups are {', '.join(_GROUPS)}"
    # As plain values: to read one that is missing would raise an error of OmegaConf's.
    content = OmegaConf.to_container(composed)
    assert isinstance(content, dict)
    return invalid(key, content[key], problem=problem, fix=did_you_mean(key, _GROUPS))


def _check_missing(content: object, prefix: str) -> None:
    """Rejects a value that is still `???`: the default of the dataclass would silently take its place."""
    for key, value in leaves(content, prefix):
        if value == _MISSING:
            fix = f"set {key}=..."
            if key.endswith("]"):
                fix = f"replace {_MISSING} by a value"
            raise ConfigError(f"{key} is required; {fix}")


def convert_group(name: str, composed: DictConfig) -> Any:
    """Converts one group of the composed config to its dataclass, as `typed_config` does."""
    if OmegaConf.is_missing(composed, name):
        _check_missing(_MISSING, f"{name}.")
    node = composed.get(name)
    if node is None:
        raise invalid(name, None, problem="needs an option", fix=f"leave {name} out to use the default")
    if not isinstance(node, DictConfig):
        raise invalid(name, node, problem="must be an option of the group", fix=f"set {name}.<key>=<value> for a key")
    kind = _GROUPS[name]
    try:
        raw = OmegaConf.to_container(node)
        _check_missing(raw, f"{name}.")
        content = _plain(node)
    except InterpolationResolutionError as error:
        raise _unresolved(str(error.full_key or name), error) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or name}: {_reason(error)}; set another value") from error
    specs = fields_of(kind)
    _take_as_texts(raw, content, name)
    content = options.arranged(name, content)
    for key in content:
        if key not in specs:
            raise unknown_key(f"{name}.{key}", specs)
    typed: Any = build(kind, content, name)
    if isinstance(typed, TrackingConfig) and typed.uri is not None:
        return replace(typed, uri=secrets.hide(typed.uri))
    return typed


def _take_as_texts(raw: Any, content: Any, prefix: str) -> None:
    """Makes numbers that interpolations bring to keys of text, as `tracking.run_name=${trainer.seed}`, texts."""
    for name, value in raw.items():
        key = f"{prefix}.{name}"
        found = content.get(name)
        if isinstance(value, dict) and isinstance(found, dict):
            _take_as_texts(value, found, key)
        elif isinstance(value, str) and isinstance(found, int | float) and texts.kind_at(key) is str:
            content[name] = str(found)


def _reason(error: OmegaConfBaseException) -> str:
    """Returns the first line of an error of OmegaConf; those after it repeat the key."""
    first = str(error.msg or error).splitlines()[0]
    return " ".join(first.split()).rstrip(".")


def _plain(node: DictConfig) -> dict[str, Any]:
    content = OmegaConf.to_container(node, resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def resolved(composed: DictConfig, mesh: MeshConfig, uri: str | None) -> dict[str, Any]:
    """Returns the composed config as plain values, with the mesh and the URI of the store of the checked one."""
    content = _plain(composed)
    # These made the config, and are not part of what it computes.
    for key in ("experiment", "sweep", *KEYS_WITHOUT_GROUP):
        content.pop(key, None)
    content["mesh"] |= {"axes": dict(mesh.axes), "device": mesh.device}
    # The typed URI has no password, which the composed one may have by an interpolation.
    content["tracking"]["uri"] = uri
    return content


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Returns overrides as Hydra lists them, with interpolations unresolved: resolved ones may be passwords."""
    unresolved = OmegaConf.to_container(overrides, resolve=False)
    assert isinstance(unresolved, list)
    return list(map(str, unresolved))


def flatten(content: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields (dotted key, leaf) pairs of nested mappings; a list is a leaf."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            inner_prefix = str(key)
            if prefix:
                inner_prefix = f"{prefix}.{key}"
            yield from flatten(value, inner_prefix)
    else:
        yield prefix, content
