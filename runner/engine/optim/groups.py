"""Parameter groups: settings of the optimizer by patterns of variables' paths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.arrays import Arrays, Tensor
from runner.config.schema import GroupConfig, OptimizerConfig
from runner.errors import ConfigError, invalid

# Name of a preset that `match` may have in place of a pattern -> its pattern.
PRESETS = {"biases_and_norms": r"(.*/)?(\w*bias|beta|gamma|scale)"}


@dataclass(frozen=True)
class Settings:
    """How one variable is trained.

    Attributes:
      rate: factor of the learning rate.
      decays: weight decay applies.
      freeze_steps: first steps of the run in which the variable and its optimizer state stay as they are. Step counts
        of the optimizer begin after them.
    """

    rate: float = 1.0
    decays: bool = True
    freeze_steps: int = 0


DEFAULT = Settings()


def settings(config: OptimizerConfig, paths: Sequence[str]) -> dict[str, Settings]:
    """Returns the settings of each trainable variable.

    Of each setting, the first group that matches the path and has it counts.

    Args:
      config: the config of the optimizer.
      paths: canonical paths of all trainable variables.

    Raises:
      ConfigError: a group matches no variable.
    """
    patterns = [pattern_of(group) for group in config.groups]
    for index, pattern in enumerate(patterns):
        if not any(pattern.fullmatch(path) for path in paths):
            raise invalid(
                f"optimizer.groups[{index}].match",
                config.groups[index].match,
                problem="matches no trainable variable",
                fix="see the variables with python -m runner.plan, or remove the group",
            )
    by_path = {}
    for path in paths:
        matching = [group for group, pattern in zip(config.groups, patterns, strict=True) if pattern.fullmatch(path)]
        by_path[path] = _combined(matching)
    return by_path


def pattern_of(group: GroupConfig) -> re.Pattern[str]:
    """Returns the pattern of a group, or of the preset that it names."""
    return re.compile(PRESETS.get(group.match, group.match))


def _combined(groups: Sequence[GroupConfig]) -> Settings:
    rate = DEFAULT.rate
    decays = DEFAULT.decays
    freeze_steps = DEFAULT.freeze_steps
    # From the last to the first, so that the first counts.
    for group in reversed(groups):
        if group.rate is not None:
            rate = group.rate
        if group.decay is not None:
            decays = group.decay
        if group.freeze_steps is not None:
            freeze_steps = group.freeze_steps
    return Settings(rate, decays, freeze_steps)


def parts(by_path: Mapping[str, Settings]) -> dict[tuple[float, int], list[str]]:
    """Returns the paths of the variables by factor of the learning rate and frozen steps.

    A stock optimizer has one learning rate and one step count, so each part needs one of its own.
    """
    paths: dict[tuple[float, int], list[str]] = {}
    for path, own in by_path.items():
        paths.setdefault((own.rate, own.freeze_steps), []).append(path)
    return paths


def without_decay(config: OptimizerConfig) -> OptimizerConfig:
    """Returns the config of an update rule without weight decay."""
    if config.weight_decay:
        return replace(config, weight_decay=0.0)
    return config


def own_step(settings: Settings, step: Tensor, xp: Arrays) -> Tensor:
    """Returns the number of a variable's own update, counted from 1; 1 while it is frozen.

    Args:
      settings: the settings of the variable.
      step: float32 (), of the run, counted from 1.
      xp: functions of the arrays.
    """
    if not settings.freeze_steps:
        return step
    return xp.maximum(step - float(settings.freeze_steps), 1.0)


def unfrozen(by_variable: Sequence[Settings], gradients: Sequence[Tensor], step: Tensor, xp: Arrays) -> list[Tensor]:
    """Returns gradients, those of frozen variables as zeros, so that they don't count in the global norm.

    Args:
      by_variable: settings of each variable.
      gradients: in the same order.
      step: float32 (), of the run, counted from 1.
      xp: functions of the arrays.
    """
    counted = []
    for own, gradient in zip(by_variable, gradients, strict=True):
        if own.freeze_steps:
            gradient = gradient * xp.to_float(step > float(own.freeze_steps))
        counted.append(gradient)
    return counted


def check(config: OptimizerConfig, *, has_weight_decay: bool) -> None:
    """Checks the groups of a config without its model.

    Args:
      config: the config of the optimizer.
      has_weight_decay: the optimizer decays weights.

    Raises:
      ConfigError: a group sets nothing, or turns off what the optimizer does not do.
    """
    for index, group in enumerate(config.groups):
        key = f"optimizer.groups[{index}]"
        if group.rate is None and group.decay is None and group.freeze_steps is None:
            raise ConfigError(
                f"{key}: states nothing for {group.match}; add rate, decay or freeze_steps, or remove it"
            )
        if group.decay is False and not has_weight_decay:
            raise invalid(
                f"{key}.decay",
                False,
                problem="the optimizer has no weight decay",
                fix="set optimizer=adamw, or remove the key",
            )
