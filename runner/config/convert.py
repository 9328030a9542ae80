"""From the composed YAML to the typed, checked run config. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, InterpolationResolutionError, OmegaConfBaseException

from runner.config import options, renamed
from runner.config.checks_values import leaves
from runner.config.kinds import misfit
from runner.config.schema import RunConfig, TrackingConfig
from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import secrets

_WORDS = ("resume", "branch", "run")  # keys without a group
_GROUPS = {spec.name: spec.default_factory for spec in fields(RunConfig) if spec.name not in _WORDS}


def typed_config(composed: DictConfig) -> RunConfig:
    """Turns the composed config into dataclasses, of which only the types are checked.

    Args:
      composed: what Hydra composed, interpolations allowed.

    Raises:
      ConfigError: an unknown key or a wrong type.
    """
    for key in composed:
        if key not in _GROUPS and key not in _WORDS:
            if key == "experiment":  # the file's keys stand below its group's name
                raise ConfigError(
                    "the file of experiment=...: its keys are meant for the whole config; write "
                    "`# @package _global_` as its first line"
                )
            raise invalid(
                str(key),
                composed[key],
                problem=f"groups are {', '.join(_GROUPS)}",
                fix=did_you_mean(str(key), _GROUPS),
            )
    typed = {name: convert_group(name, composed) for name in _GROUPS}
    config = RunConfig(**typed)
    for word in _WORDS:
        _check_missing("???" if OmegaConf.is_missing(composed, word) else "", f"{word}.")
        setattr(config, word, None if composed.get(word) is None else str(composed[word]))
    return config


def _check_missing(content: object, prefix: str = "") -> None:
    """Refuses a value that is still `???`, wherever it stands; a dataclass's default would take its place unseen."""
    for key, value in leaves(content, prefix):
        if value == "???":
            raise ConfigError(f"{key}: it has no value (???); set it, as {key}=...")


def convert_group(name: str, composed: DictConfig) -> Any:
    """Turns one group of the composed config into its dataclass.

    Args:
      name: of the group.
      composed: what Hydra composed.

    Returns:
      The dataclass, of which types are checked and no more.

    Raises:
      ConfigError: an unknown key or a wrong type.
    """
    if OmegaConf.is_missing(composed, name):
        _check_missing("???", f"{name}.")
    node = composed.get(name)
    if node is None:
        raise invalid(name, None, problem="every group needs an option", fix=f"leave {name} out to get the default")
    if not isinstance(node, DictConfig):
        raise invalid(name, node, problem="an option of the group or keys under it", fix=f"write {name}.key=value")
    try:
        _check_missing(OmegaConf.to_container(node), f"{name}.")
        defaults = {spec.name: spec.default for spec in fields(_GROUPS[name])}  # type: ignore[arg-type]
        content = options.arranged(name, renamed.group(name, _plain(node), defaults))
        for key in content:  # OmegaConf.merge would report the first wrong value before an unknown key
            if key not in defaults:
                raise options.unknown(name, key, defaults)
        if (wrong := misfit(_GROUPS[name], content, name)) is not None:
            raise wrong
        typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(_GROUPS[name]), OmegaConf.create(content)))
        if isinstance(typed, TrackingConfig) and typed.uri is not None:
            typed.uri = secrets.hide(typed.uri)
        return typed
    except InterpolationResolutionError as error:
        reason = " ".join(str(error.msg or error).splitlines()[0].split())
        key = str(error.full_key or name)
        raise ConfigError(f"{key}: its interpolation gives nothing ({reason}); fix or drop it") from error
    except OmegaConfBaseException as error:
        raise _refuse_value(name, node, error) from error


def _plain(node: DictConfig) -> dict[str, Any]:
    content = OmegaConf.to_container(node, resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _refuse_value(group: str, node: DictConfig, error: OmegaConfBaseException) -> ConfigError:
    inner = (error.full_key or "").removeprefix(f"{group}.")
    key = f"{group}.{inner}" if inner else group
    if isinstance(error, ConfigKeyError):
        return _refuse_nested_key(group, node, key, error)
    value = OmegaConf.select(node, inner, throw_on_resolution_failure=False) if inner else node
    reason = " ".join(str(error.msg or error).splitlines()[0].split()).rstrip(".")
    return invalid(key, value, problem=reason, fix=f"set {key} to another value")


def _refuse_nested_key(group: str, node: DictConfig, key: str, error: OmegaConfBaseException) -> ConfigError:
    """Words a key that a nested dataclass lacks; OmegaConf names one inside a list without its place."""
    known = [spec.name for spec in fields(error.object_type)] if is_dataclass(error.object_type) else []
    word = str(error.key if error.key is not None else key.rpartition(".")[2])
    if group == "layout":
        places = [i for i, rule in enumerate(node.get("rules") or []) if isinstance(rule, DictConfig) and word in rule]
        key = f"layout.rules[{places[0]}].{word}" if places else key
    names = f"keys there are {', '.join(known)}; " if known else ""
    return ConfigError(f"{key}: no such key; {names}{did_you_mean(word, known)}")


def resolved(config: RunConfig, composed: DictConfig) -> dict[str, Any]:
    """Returns the composed config as plain values, with what the checks settled: the mesh's devices and sizes."""
    content = _plain(composed)
    for key in ("experiment", "sweep", *_WORDS):  # what made this config, not what it computes
        content.pop(key, None)
    content["mesh"] |= {"axes": dict(config.mesh.axes), "device": config.mesh.device}
    content["tracking"]["uri"] = config.tracking.uri  # without a secret that an interpolation gives
    return content


def choices() -> dict[str, str]:
    """Returns group -> option, as Hydra composed this process's config; a group without one is left out."""
    found = HydraConfig.get().runtime.choices.items()
    return {key: str(value) for key, value in found if not key.startswith("hydra/") and str(value) != "None"}


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Returns overrides as Hydra lists them, their interpolations not resolved: a password may come by one."""
    written = OmegaConf.to_container(overrides, resolve=False)
    assert isinstance(written, list)
    return [str(one) for one in written]


def flatten(content: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields (dotted key, leaf) pairs of nested mappings; a list is a leaf."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, content
