"""Keras's own optimizers and schedules for a config, which the update rules are compared with on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from runner.config.schema import ClipConfig, OptimizerConfig
from runner.engine.optim import groups
from runner.engine.optim.keras_classes import stock_optimizer
from runner.engine.optim.schedules import decay_span, is_constant, learning_rate
from runner.verify.meshproof.by_path import chosen

# No comparison with a stock optimizer takes more steps than this, with a schedule that Keras lacks.
_MOST_COMPARED_STEPS = 65_536


class StockPart:
    """A built stock optimizer, and the paths of its variables, which have one learning rate."""

    def __init__(self, optimizer: Any, variables: Mapping[str, Any], settings: Mapping[str, groups.Settings]) -> None:
        """Builds the optimizer for variables by path."""
        self.optimizer = optimizer
        self.paths = list(variables)
        excluded = [variable for path, variable in variables.items() if not settings[path].decays]
        if excluded:
            optimizer.exclude_from_weight_decay(var_list=excluded)
        optimizer.build(list(variables.values()))
        self._start = [variable.numpy() for variable in optimizer.variables]

    def load(self, step: int) -> None:
        """Takes the optimizer back to its first state, but for the count of steps."""
        for variable, value in zip(self.optimizer.variables, self._start, strict=True):
            variable.assign(value)
        self.optimizer.iterations.assign(step)


def stock_parts(
    config: OptimizerConfig,
    total_steps: int,
    keras: ModuleType,
    settings: Mapping[str, groups.Settings],
    variables: Mapping[str, Any],
) -> list[StockPart]:
    """Returns a stock optimizer per learning rate, of `tf_keras` or Keras 3.

    If there are several, none clips gradients: a norm may be that of all of them.
    """
    found = []
    for factor, paths in groups.parts(settings).items():
        own = config
        if is_divided(settings):
            own = replace(config, learning_rate=config.learning_rate * factor, clip=ClipConfig())
        optimizer = stock_optimizer(own, keras_schedule(own, total_steps, keras), keras)
        found.append(StockPart(optimizer, chosen(variables, paths), settings))
    return found


def is_divided(settings: Mapping[str, groups.Settings]) -> bool:
    """Returns whether variables differ in learning rate from the config's own."""
    return set(groups.parts(settings)) != {1.0}


def keras_schedule(config: OptimizerConfig, total_steps: int, keras: Any) -> object:
    """Returns a constant rate, Keras's own schedule, or a table of the runner's rates where Keras has none."""
    base = config.learning_rate
    schedule = config.schedule
    schedules = keras.optimizers.schedules
    if is_constant(schedule):
        return base
    span = decay_span(schedule, total_steps)
    final = schedule.final_factor
    if schedule.name == "cosine":
        if not schedule.warmup_steps:
            return schedules.CosineDecay(base, span, final)
        first = base * schedule.initial_factor
        return schedules.CosineDecay(first, span, final, warmup_target=base, warmup_steps=schedule.warmup_steps)
    # Keras's other schedules have no warm-up.
    if schedule.warmup_steps:
        return _tabulated(config, total_steps, keras)
    if schedule.name in ("linear", "polynomial"):
        power = schedule.power if schedule.name == "polynomial" else 1.0
        return schedules.PolynomialDecay(base, span, base * final, power)
    if schedule.name == "exponential":
        return schedules.ExponentialDecay(base, schedule.decay_steps, schedule.decay_rate, schedule.staircase)
    if schedule.name == "piecewise":
        rates = [base * factor for factor in schedule.factors]
        return schedules.PiecewiseConstantDecay(schedule.boundaries, rates)
    return _tabulated(config, total_steps, keras)


def _tabulated(config: OptimizerConfig, total_steps: int, keras: Any) -> object:
    """Returns a Keras schedule that looks up rates which were computed in Python's double precision.

    So the formula that the devices compute in float32 is compared with other numbers than its own.
    """
    # A comparison may take more steps than the run.
    rates = np.zeros(_MOST_COMPARED_STEPS, np.float32)
    for step in range(_MOST_COMPARED_STEPS):
        rates[step] = learning_rate(config, step, total_steps)

    class Tabulated(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            # Keras 3 has its functions in `ops`, tf_keras in `backend`.
            if hasattr(keras, "ops"):
                return keras.ops.take(rates, keras.ops.cast(step, "int32"))
            return keras.backend.gather(rates, keras.backend.cast(step, "int32"))

        def get_config(self) -> dict[str, object]:
            return {}

    return Tabulated()
