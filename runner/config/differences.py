"""What a config differs from the defaults in, as a person would type it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner.config.compose import compose_again, default_choices
from runner.config.convert import choices, flatten

_PRESET = "experiment"  # what it sets is shown as if it were typed


def differences(composed: DictConfig, content: Mapping[str, Any]) -> list[str]:
    """Returns the overrides that make a config of the defaults, whether they were typed, recorded or a preset's.

    Args:
      composed: the run's config, as Hydra composed it in this process.
      content: the same resolved, as plain values and without secrets.

    Returns:
      The preset, groups whose option is not the default one, and keys whose value is not their option's.
    """
    chosen = choices()
    default = default_choices()
    options = {group: option for group, option in chosen.items() if str(default.get(group)) != option}
    preset = [f"{_PRESET}={options.pop(_PRESET)}"] if _PRESET in options else []
    typed = [f"{group}={option}" for group, option in options.items()]
    # Raw values are compared, as an interpolation may give another value each time; what is shown is resolved.
    before = dict(flatten(_raw(compose_again(typed))))
    now = dict(flatten(_raw(composed)))
    values = dict(flatten(content))
    other = [key for key in values if key in now and (key not in before or before[key] != now[key])]
    gone = [f"~{key}" for key in before if key not in now and key.partition(".")[0] in content]
    return [*preset, *typed, *(f"{key}={_typed(values[key])}" for key in other), *gone]


def _raw(config: DictConfig) -> dict[str, Any]:
    content = OmegaConf.to_container(config)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items() if key != "hydra"}


def _typed(value: object) -> str:
    """Returns a value as Hydra's grammar has it: `null`, `true`, `[a, b]`, `{key: value}`."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_typed(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_typed, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
