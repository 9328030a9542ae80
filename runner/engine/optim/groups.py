"""Parameter groups: settings of the optimizer by patterns of variables' paths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.config.schema import OptimizerConfig
from runner.errors import ConfigError, invalid

# Name of a preset that `match` may have in place of a pattern -> its pattern.
PRESETS = {"biases_and_norms": r"(.*/)?(\w*bias|beta|gamma|scale)"}


@dataclass(frozen=True)
class Settings:
    """How one variable is trained: the factor of its learning rate, and whether its weight decays."""

    rate: float = 1.0
    decays: bool = True


def settings(config: OptimizerConfig, paths: Sequence[str]) -> dict[str, Settings]:
    """Returns the settings of each trainable variable; of each, the first group that matches and has it counts."""
    patterns = [re.compile(PRESETS.get(group.match, group.match)) for group in config.groups]
    for index, pattern in enumerate(patterns):
        if not any(pattern.fullmatch(path) for path in paths):
            key = f"optimizer.groups[{index}].match"
            fix = "see the variables with python -m runner.plan, or remove the group"
            raise invalid(key, config.groups[index].match, problem="matches no trainable variable", fix=fix)
    by_path = {}
    # From the last to the first, so that the first counts.
    last_first = list(zip(config.groups, patterns, strict=True))[::-1]
    for path in paths:
        own = Settings()
        for group, pattern in last_first:
            if not pattern.fullmatch(path):
                continue
            if group.rate is not None:
                own = replace(own, rate=group.rate)
            if group.decay is not None:
                own = replace(own, decays=group.decay)
        by_path[path] = own
    return by_path


def parts(by_path: Mapping[str, Settings]) -> dict[float, list[str]]:
    """Returns the paths of the variables by factor of the learning rate: a stock optimizer has one rate."""
    paths: dict[float, list[str]] = {}
    for path, own in by_path.items():
        paths.setdefault(own.rate, []).append(path)
    return paths


def without_decay(config: OptimizerConfig) -> OptimizerConfig:
    """Returns the config of an update rule without weight decay."""
    if config.weight_decay:
        return replace(config, weight_decay=0.0)
    return config


def check(config: OptimizerConfig, *, has_weight_decay: bool) -> None:
    """Rejects a group that sets nothing, or turns off what the optimizer does not do."""
    for index, group in enumerate(config.groups):
        key = f"optimizer.groups[{index}]"
        if group.rate is None and group.decay is None:
            raise ConfigError(f"{key}: states nothing for {group.match}; add rate or decay, or remove it")
        if group.decay is False and not has_weight_decay:
            fix = "set optimizer=adamw, or remove the key"
            raise invalid(f"{key}.decay", False, problem="the optimizer has no weight decay", fix=fix)
