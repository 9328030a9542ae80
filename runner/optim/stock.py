"""Keras's own optimizers for a config: the peers that the rules are compared with on one device."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from runner.config.schema import OptimizerConfig
from runner.optim.rules import RULE_KEYS
from runner.optim.schedules import cosine_span

_KINDS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop"}
_CLIPS = {"norm": "clipnorm", "global_norm": "global_clipnorm", "value": "clipvalue"}


def stock_optimizer(config: OptimizerConfig, total_steps: int, keras: ModuleType) -> Any:
    """Returns the optimizer of a Keras, with the config's schedule and clipping.

    Args:
      config: a checked config.
      total_steps: steps of the whole training.
      keras: `tf_keras` or Keras 3.
    """
    arguments: dict[str, object] = {_CLIPS[k]: v for k, v in vars(config.clip).items() if v is not None}
    arguments |= {key: getattr(config, key) for key in RULE_KEYS[config.name]}
    arguments["learning_rate"] = _schedule(config, total_steps, keras.optimizers.schedules)
    return getattr(keras.optimizers, _KINDS[config.name])(**arguments)


def _schedule(config: OptimizerConfig, total_steps: int, schedules: ModuleType) -> object:
    base = config.learning_rate
    schedule = config.schedule
    if schedule.name == "cosine":
        span = cosine_span(schedule, total_steps)
        if not schedule.warmup_steps:
            return schedules.CosineDecay(base, span, schedule.final_factor)
        return schedules.CosineDecay(
            0.0, span, schedule.final_factor, warmup_target=base, warmup_steps=schedule.warmup_steps
        )
    if schedule.name == "exponential":
        return schedules.ExponentialDecay(base, schedule.decay_steps, schedule.decay_rate, schedule.staircase)
    if schedule.name == "piecewise":
        return schedules.PiecewiseConstantDecay(schedule.boundaries, [base * f for f in schedule.factors])
    return base
