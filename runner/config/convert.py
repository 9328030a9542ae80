"""From the composed YAML to the typed, checked run config. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from runner.config import checks, renamed, secrets
from runner.config.checks_values import leaves
from runner.config.errors import ConfigError, did_you_mean, refuse
from runner.config.kinds import misfit
from runner.config.schema import AugmentConfig, ModelConfig, RunConfig, TaskConfig, TrackingConfig
from runner.config.schema_task import OPTIONS

_WORDS = ("resume", "branch", "run")  # keys without a group
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
    config = RunConfig(**typed)
    for word in _WORDS:
        _check_missing("???" if OmegaConf.is_missing(composed, word) else "", f"{word}.")
        setattr(config, word, None if composed.get(word) is None else str(composed[word]))
    checks.check(config)
    return config


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
        content = renamed.group(name, OmegaConf.to_container(node, resolve=True))  # type: ignore[arg-type]
        if name == "dataset":
            content = _dataset(content)
        if name == "task":
            content = _task(content)
        for key in content:  # OmegaConf.merge would report the first wrong value before an unknown key
            _known_key(name, str(key), [spec.name for spec in fields(_GROUPS[name])])  # type: ignore[arg-type]
        if (wrong := misfit(_GROUPS[name], content, name)) is not None:
            raise wrong
        typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(_GROUPS[name]), OmegaConf.create(content)))
        if isinstance(typed, TrackingConfig) and typed.uri is not None:
            typed.uri = secrets.hide(typed.uri)
        return typed
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


def _dataset(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a dataset's keys as its dataclass has them: what calls a user's own code has its options beside it."""
    steps = content.get("augment")
    if isinstance(steps, list):
        content = content | {"augment": [_beside(AugmentConfig, one) for one in steps]}
    if "_target_" not in content:
        for key in ("target", "options"):
            if key in content:
                _known_key("dataset", key, [spec.name for spec in fields(_GROUPS["dataset"]) if spec.name != key])  # type: ignore[arg-type]
        return content
    return _beside(_GROUPS["dataset"], content)


def _task(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a task's keys as its dataclass has them: names in lists, and what its option alone has as `options`."""
    name = content.get("name")
    if name not in OPTIONS:
        raise refuse("task.name", name, allowed=f"one of {', '.join(OPTIONS)}", mend=did_you_mean(str(name), OPTIONS))
    shared = [spec.name for spec in fields(TaskConfig) if spec.name != "options"]
    kind, words = OPTIONS[name], {"_target_": "loss"} if name == "custom" else {}
    own = [spec.name for spec in fields(kind) if spec.name not in words.values()]
    for key in content:
        _known_key("task", key, [*shared, *words, *own])
    options = {words.get(key, key): value for key, value in content.items() if key not in shared}
    if (wrong := misfit(kind, options, "task")) is not None:
        raise wrong
    typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.create(options)))
    assert is_dataclass(typed)
    lists = {key: [one] if isinstance(one, str) else one for key in ("target", "inputs") if (one := content.get(key))}
    kept = {key: content[key] for key in ("name", "example_weight") if key in content}
    return {**kept, **lists, "options": asdict(typed)}  # type: ignore[arg-type]


def _beside(kind: Any, content: Any) -> Any:
    """Returns a mapping with `_target_` as `target`, and the keys that a dataclass has not as `options`."""
    if not isinstance(content, Mapping):
        return content  # refused by its type
    own = {spec.name for spec in fields(kind)} - {"target", "options"}
    return {
        **{key: value for key, value in content.items() if key in own},
        "target": content.get("_target_", ""),
        "options": {str(key): value for key, value in content.items() if key not in own and key != "_target_"},
    }


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
    reason = " ".join(str(error.msg or error).splitlines()[0].split()).rstrip(".")
    return refuse(key, value, allowed=reason, mend=f"set {key} to another value")


def _refuse_nested_key(group: str, node: DictConfig, key: str, error: OmegaConfBaseException) -> ConfigError:
    """Words a key that a nested dataclass lacks; OmegaConf names one inside a list without its place."""
    known = [spec.name for spec in fields(error.object_type)] if is_dataclass(error.object_type) else []
    word = str(error.key if error.key is not None else key.rpartition(".")[2])
    if group == "layout":
        places = [i for i, rule in enumerate(node.get("rules") or []) if isinstance(rule, DictConfig) and word in rule]
        key = f"layout.rules[{places[0]}].{word}" if places else key
    names = f"keys there are {', '.join(known)}; " if known else ""
    return ConfigError(f"{key} is refused: no such key; {names}{did_you_mean(word, known)}")


def resolved(config: RunConfig, composed: DictConfig) -> dict[str, Any]:
    """Returns the composed config as plain values, with what the checks settled (mesh sizes of -1)."""
    content = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(content, dict)
    for key in ("experiment", "sweep", *_WORDS):  # what made this config, not what it computes
        content.pop(key, None)
    content["mesh"]["axes"] = dict(config.mesh.axes)
    content["tracking"]["uri"] = config.tracking.uri  # without a secret that an interpolation gives
    return {str(key): value for key, value in content.items()}


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
