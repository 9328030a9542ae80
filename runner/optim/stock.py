"""Keras's own optimizers for a config, which our update rules are compared with on one device."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from runner.config.schema import ClipConfig, OptimizerConfig
from runner.optim.registry import OPTIMIZERS
from runner.optim.schedules import SCHEDULES, decay_span, learning_rate

# No comparison with a stock optimizer takes more steps than this.
_MOST_COMPARED_STEPS = 65_536

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
    arguments["learning_rate"] = _schedule(config, total_steps, keras)
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


def _schedule(config: OptimizerConfig, total_steps: int, keras: ModuleType) -> object:
    """Returns a Keras schedule, or the learning rate itself if it is constant."""
    schedule = config.schedule
    entry = SCHEDULES[schedule.name]
    schedules = keras.optimizers.schedules
    if not schedule.warmup_steps:
        if schedule.name == "constant":
            return config.learning_rate
        if entry.make_keras is not None:
            return entry.make_keras(config, total_steps, schedules)
    elif schedule.name == "cosine":
        # The only schedule of Keras's that has a warm-up.
        base = config.learning_rate
        span = decay_span(schedule, total_steps)
        return schedules.CosineDecay(
            base * schedule.initial_factor,
            span,
            schedule.final_factor,
            warmup_target=base,
            warmup_steps=schedule.warmup_steps,
        )
    return _tabulated(config, total_steps, keras)


def _tabulated(config: OptimizerConfig, total_steps: int, keras: Any) -> object:
    """Returns a Keras schedule that looks up rates which were computed in Python's double precision.

    So the formula that the devices compute in float32 is compared with other numbers than its own.
    """
    count = min(total_steps, _MOST_COMPARED_STEPS)
    rates = np.zeros(count, np.float32)
    for step in range(count):
        rates[step] = learning_rate(config, step, total_steps)

    class Tabulated(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        """The rates of a config, by step."""

        def __call__(self, step: Any) -> Any:
            """Returns the rate of a step."""
            # Keras 3 has its functions in `ops`, tf_keras in `backend`.
            if hasattr(keras, "ops"):
                return keras.ops.take(rates, keras.ops.cast(step, "int32"))
            return keras.backend.gather(rates, keras.backend.cast(step, "int32"))

        def get_config(self) -> dict[str, object]:
            """Returns no arguments: nothing loads it again."""
            return {}

    return Tabulated()
