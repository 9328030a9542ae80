"""What stands beside a group's own keys: options of a builder, of a data source, of a step of augmentation, of a task.

In YAML, and as it is typed, `_target_` names what is called and its keyword arguments stand beside it. The dataclasses
hold the one as `target` and the others as `options`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from omegaconf import OmegaConf

from runner.config import schema_task
from runner.config.checks_values import one_of
from runner.config.kinds import misfit
from runner.config.schema import AugmentConfig, DatasetConfig, ModelConfig, TaskConfig
from runner.errors import ConfigError, did_you_mean, invalid

_TARGET = "_target_"
_HELD = ("target", "options")  # fields that no key of YAML has


def arranged(group: str, content: dict[str, object]) -> dict[str, object]:
    """Returns a group's keys as its dataclass has them.

    Args:
      group: its name.
      content: its keys and values, plain.

    Raises:
      ConfigError: an unknown key, or one of a wrong type.
    """
    if group == "model":
        return _beside("model", ModelConfig, content)
    if group == "dataset":
        return _dataset(content)
    return _task(content) if group == "task" else content


def _beside(key: str, kind: type, content: Mapping[str, object]) -> dict[str, object]:
    own = _names(kind)
    target = content.get(_TARGET, "")
    if not isinstance(target, str):
        raise invalid(
            f"{key}.{_TARGET}", target, problem="an import path", fix=f"write {key}.{_TARGET}=package.module.function"
        )
    return {
        **{name: value for name, value in content.items() if name in own},
        "target": target,
        "options": {name: value for name, value in content.items() if name not in own and name != _TARGET},
    }


def _names(kind: type) -> list[str]:
    assert is_dataclass(kind)
    return [spec.name for spec in fields(kind) if spec.name not in _HELD]


def _dataset(content: dict[str, object]) -> dict[str, object]:
    steps = content.get("augment")
    if isinstance(steps, list):
        places = [(f"dataset.augment[{place}]", one) for place, one in enumerate(steps)]
        steps = [_beside(key, AugmentConfig, one) if isinstance(one, Mapping) else one for key, one in places]
        content = content | {"augment": steps}  # what is no mapping is refused by its type
    if _TARGET in content:
        return _beside("dataset", DatasetConfig, content)
    for name in _HELD:
        if name in content:
            raise unknown("dataset", name, _names(DatasetConfig))
    return content


def _task(content: dict[str, object]) -> dict[str, object]:
    name = content.get("name", TaskConfig.name)
    one_of("task.name", str(name), tuple(schema_task.OPTIONS))
    kind = schema_task.OPTIONS[str(name)]
    own = [spec.name for spec in fields(TaskConfig) if spec.name != "options"]
    options = {key: value for key, value in content.items() if key not in own}
    allowed = [spec.name for spec in fields(kind)]
    if name == "custom":
        allowed[allowed.index("target")] = _TARGET
    for key in options:
        if key not in allowed:
            raise unknown("task", key, [*own, *allowed], of=f"task={name}")
    if _TARGET in options:
        options["target"] = options.pop(_TARGET)
    if (wrong := misfit(kind, options, "task")) is not None:
        raise wrong
    typed = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.create(options)))
    target, inputs = ([one] if isinstance(one, str) else one for one in (content.get("target"), content.get("inputs")))
    return {
        **{key: value for key, value in content.items() if key in own},
        "target": [] if target is None else target,
        "inputs": inputs,
        "options": typed,
    }


def unknown(group: str, key: str, known: Iterable[str], of: str = "") -> ConfigError:
    """Words the refusal of a key that a group, or what it is `of`, lacks."""
    known = list(known)
    return ConfigError(
        f"{group}.{key}: no such key; keys of {of or group} are {', '.join(known)}; {did_you_mean(key, known)}"
    )
