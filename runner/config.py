"""From the composed YAML to the typed, checked run config. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from runner import checks
from runner.checks_values import leaves
from runner.errors import ConfigError, refuse
from runner.schema import ModelConfig, RunConfig

_WORDS = ("resume", "run")  # keys without a group
_GROUPS = {spec.name: spec.default_factory for spec in fields(RunConfig) if spec.name not in _WORDS}


def convert(composed: DictConfig) -> RunConfig:
    """Turns the composed config into dataclasses and checks it.

    Args:
      composed: what Hydra composed, interpolations allowed.

    Returns:
      The run config; every check that needs no TensorFlow has passed.

    Raises:
      ConfigError: an unknown key, a wrong type, a value out of range, or keys that don't fit together.
    """
    for key in composed:
        if key not in _GROUPS and key not in _WORDS:
            raise refuse(
                str(key),
                composed[key],
                allowed=f"groups are {', '.join(_GROUPS)}",
                mend=did_you_mean(str(key), _GROUPS),
            )
    typed = {name: convert_group(name, composed) for name in _GROUPS}
    _check_choices()
    config = RunConfig(**typed)
    for word in _WORDS:
        _check_missing("???" if OmegaConf.is_missing(composed, word) else "", f"{word}.")
        setattr(config, word, None if composed.get(word) is None else str(composed[word]))
    checks.check(config)
    return config


def _check_choices() -> None:
    """Refuses a list of options for a group, as `model=[mlp]`: Hydra composes it, and then knows no choice by name."""
    if not HydraConfig.initialized():  # composed without a command line
        return
    choices = HydraConfig.get().runtime.choices
    for name in _GROUPS:
        if name not in choices:
            raise refuse(name, "[...]", allowed="one option of the group, not a list", mend=f"write {name}=option")


def _check_missing(content: object, prefix: str = "") -> None:
    """Refuses a value that is still `???`, wherever it stands; a dataclass's default would take its place unseen."""
    for key, value in leaves(content, prefix):
        if value == "???":
            raise ConfigError(f"{key} is refused: it has no value (???); set it, as {key}=...")


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
        raise refuse(name, None, allowed="every group needs an option", mend=f"leave {name} out to get the default")
    if not isinstance(node, DictConfig):
        raise refuse(name, node, allowed="an option of the group or keys under it", mend=f"write {name}.key=value")
    try:
        _check_missing(OmegaConf.to_container(node), f"{name}.")
        if name == "model":
            return _model(node)
        for key in node:  # OmegaConf.merge would report the first wrong value before an unknown key
            _known_key(name, str(key), [spec.name for spec in fields(_GROUPS[name])])  # type: ignore[arg-type]
        resolved = OmegaConf.create(OmegaConf.to_container(node, resolve=True))
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(_GROUPS[name]), resolved))
    except InterpolationResolutionError as error:
        reason = " ".join(str(error.msg or error).splitlines()[0].split())
        key = str(error.full_key or name)
        raise ConfigError(f"{key} is refused: its interpolation gives nothing ({reason}); mend or drop it") from error
    except OmegaConfBaseException as error:
        raise _refuse_value(name, node, error) from error


def _model(node: DictConfig) -> ModelConfig:
    content = OmegaConf.to_container(node, resolve=True)
    assert isinstance(content, dict)
    target = content.pop("_target_", "")
    if not isinstance(target, str):
        raise refuse(
            "model._target_", target, allowed="an import path", mend="write model._target_=package.module.function"
        )
    return ModelConfig(target=target, options={str(key): value for key, value in content.items()})


def _known_key(group: str, key: str, known: list[str]) -> None:
    if key not in known:
        raise ConfigError(
            f"{group}.{key} is refused: no such key; keys of {group} are {', '.join(known)}; "
            f"{did_you_mean(key, known)}"
        )


def _refuse_value(group: str, node: DictConfig, error: OmegaConfBaseException) -> ConfigError:
    inner = (error.full_key or "").removeprefix(f"{group}.")
    key = f"{group}.{inner}" if inner else group
    if isinstance(error, MissingMandatoryValue):
        return ConfigError(f"{key} is refused: it has no value; set it, as {key}=...")
    if isinstance(error, ConfigKeyError):
        return _refuse_nested_key(group, node, key, error)
    value = OmegaConf.select(node, inner, throw_on_resolution_failure=False) if inner else node
    nested = _nested_value(_GROUPS[group], node, group)
    if nested is not None:
        return nested
    reason = " ".join(str(error.msg or error).splitlines()[0].split()).rstrip(".")
    wanted = _annotation(group, inner)
    return refuse(key, value, allowed=f"a value of type {wanted}" if wanted else reason, mend=f"set {key} to one")


def _nested_value(kind: Any, node: DictConfig, prefix: str) -> ConfigError | None:
    """Words a plain value where a nested group of keys belongs, as `optimizer.schedule=cosine`."""
    for spec in fields(kind):
        inner: Any = spec.default_factory
        if is_dataclass(inner) and spec.name in node and not isinstance(node[spec.name], DictConfig):
            key, names = f"{prefix}.{spec.name}", [each.name for each in fields(inner)]
            first = f"{key}.{names[0]}={node[spec.name]}"
            return refuse(key, node[spec.name], allowed=f"keys under it: {', '.join(names)}", mend=f"write {first}")
    return None


def _refuse_nested_key(group: str, node: DictConfig, key: str, error: OmegaConfBaseException) -> ConfigError:
    """Words a key that a nested dataclass lacks; OmegaConf names one inside a list without its place."""
    known = [spec.name for spec in fields(error.object_type)] if is_dataclass(error.object_type) else []
    word = str(error.key if error.key is not None else key.rpartition(".")[2])
    if group == "layout":
        places = [i for i, rule in enumerate(node.get("rules") or []) if isinstance(rule, DictConfig) and word in rule]
        key = f"layout.rules[{places[0]}].{word}" if places else key
    names = f"keys there are {', '.join(known)}; " if known else ""
    return ConfigError(f"{key} is refused: no such key; {names}{did_you_mean(word, known)}")


def _annotation(group: str, inner: str) -> str | None:
    """Returns the schema's type of a dotted key, as it stands in the source; None for a key inside a list or dict."""
    kind: Any = _GROUPS[group]
    annotation = None
    for part in inner.split("."):
        specs = {spec.name: spec for spec in fields(kind)} if is_dataclass(kind) else {}
        if part not in specs:
            return annotation if part.isdigit() or "[" in part else None
        annotation, kind = str(specs[part].type), specs[part].default_factory
    return annotation


def did_you_mean(word: str, known: Mapping[str, Any] | list[str]) -> str:
    """Returns the mend for a misspelt word: the nearest known one, else where to look."""
    close = get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else "see python -m runner --cfg job"


def resolved(config: RunConfig, composed: DictConfig) -> dict[str, Any]:
    """Returns the composed config as plain values, with what the checks settled (mesh sizes of -1)."""
    content = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(content, dict)
    for key in ("experiment", "sweep", *_WORDS):  # what made this config, not what it computes
        content.pop(key, None)
    content["mesh"]["axes"] = dict(config.mesh.axes)
    return {str(key): value for key, value in content.items()}


def flatten(content: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields (dotted key, leaf) pairs of nested mappings; a list is a leaf."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, content
