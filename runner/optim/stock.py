"""Keras's own optimizers for a config, which our update rules are compared with on one device."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from runner.config.schema import ClipConfig, OptimizerConfig
from runner.optim.registry import OPTIMIZERS
from runner.optim.schedules import cosine_span

# Our key of `optimizer.clip` -> Keras's argument.
_CLIP_ARGUMENTS = {"norm": "clipnorm", "global_norm": "global_clipnorm", "value": "clipvalue"}


def stock_optimizer(config: OptimizerConfig, total_steps: int, keras: ModuleType) -> Any:
    """Returns Keras's own optimizer, with the config's schedule and clipping.

    Args:
      config: a checked config.
      total_steps: steps of the whole training.
      keras: `tf_keras` or Keras 3.
    """
    entry = OPTIMIZERS[config.name]
    arguments = _clip_arguments(config.clip)
    for key in entry.keys:
        arguments[key] = getattr(config, key)
    arguments["learning_rate"] = _schedule(config, total_steps, keras.optimizers.schedules)
    make = getattr(keras.optimizers, entry.keras_class)
    return make(**arguments)


def _clip_arguments(config: ClipConfig) -> dict[str, object]:
    arguments = {}
    for key, argument in _CLIP_ARGUMENTS.items():
        limit = getattr(config, key)
        # Keras rejects several kinds of clipping at once, so the others are left out.
        if limit is not None:
            arguments[argument] = limit
    return arguments


def _schedule(config: OptimizerConfig, total_steps: int, schedules: ModuleType) -> object:
    """Returns a Keras schedule, or the learning rate itself if it is constant."""
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
        rates = [base * factor for factor in schedule.factors]
        return schedules.PiecewiseConstantDecay(schedule.boundaries, rates)
    return base
