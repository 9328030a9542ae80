"""Keras's own optimizers for a config, which our update rules are compared with on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from runner.config.schema import ClipConfig, OptimizerConfig
from runner.engine.optim import groups
from runner.engine.optim.keras_classes import (
    CLASSES,
    options_checked,
)
from runner.engine.optim.rules import OPTIMIZERS, Slot
from runner.engine.optim.schedules import decay_span, is_constant, learning_rate

# No comparison with a stock optimizer takes more steps than this, with a schedule that Keras lacks.
_MOST_COMPARED_STEPS = 65_536

# Variables of fewer dims have no factored state.
_LEAST_FACTORED = 2

# Our key of `optimizer.clip` -> Keras's argument.
_CLIP_ARGUMENTS = {"norm": "clipnorm", "global_norm": "global_clipnorm", "value": "clipvalue"}


@dataclass(frozen=True)
class StockPart:
    """A stock optimizer, not yet built, and the paths of its variables, which have one learning rate."""

    optimizer: Any
    paths: Sequence[str]

    def build(self, variables: Mapping[str, Any], settings: Mapping[str, groups.Settings]) -> None:
        """Builds the optimizer."""
        excluded = [variables[path] for path in self.paths if not settings[path].decays]
        if excluded:
            self.optimizer.exclude_from_weight_decay(var_list=excluded)
        self.optimizer.build([variables[path] for path in self.paths])


def stock_parts(
    config: OptimizerConfig, total_steps: int, keras: ModuleType, settings: Mapping[str, groups.Settings]
) -> list[StockPart]:
    """Returns a stock optimizer per learning rate, of `tf_keras` or Keras 3.

    If there are several, none clips gradients: a norm may be that of all of them.
    """
    by_setting = groups.parts(settings)
    found = []
    for factor, paths in by_setting.items():
        own = config
        if is_divided(settings):
            own = replace(config, learning_rate=config.learning_rate * factor, clip=ClipConfig())
        found.append(StockPart(stock_optimizer(own, keras_schedule(own, total_steps, keras), keras), paths))
    return found


def is_divided(settings: Mapping[str, groups.Settings]) -> bool:
    """Returns whether variables differ in learning rate from the config's own."""
    return set(groups.parts(settings)) != {1.0}


def stock_optimizer(config: OptimizerConfig, rate: object, keras: ModuleType) -> Any:
    """Returns Keras's own optimizer with the config's clipping and a learning rate, a number or a schedule."""
    arguments = {**_clip_arguments(config.clip), **keras_arguments(config), "learning_rate": rate}
    make = getattr(keras.optimizers, _class_of(config))
    with options_checked(config):
        return make(**arguments)


def _class_of(config: OptimizerConfig) -> str:
    return config.class_name or OPTIMIZERS[config.name].keras_class


def keras_arguments(config: OptimizerConfig) -> dict[str, Any]:
    """Returns the arguments of Keras's class that are not the same for every optimizer."""
    entry = OPTIMIZERS[config.name]
    if entry.is_keras_class:
        return dict(config.options)
    return {key: getattr(config, key) for key in entry.keys}


def keras_slots(
    config: OptimizerConfig, optimizer: Any, ranks: Mapping[str, int]
) -> list[tuple[Slot, dict[str, Any]]]:
    """Returns the state of a built optimizer of Keras, each slot with its variables by their owner's path.

    `ranks`: path -> number of dims, in the order in which the optimizer was built. Variables without state are left
    out.
    """
    if OPTIMIZERS[config.name].is_transformation:
        by_slot: list[tuple[Slot, dict[str, Any]]] = optimizer.by_slot
        return by_slot
    found = []
    for name, slot in CLASSES[_class_of(config)].items():
        state = getattr(optimizer, slot.attribute, [])
        initial = slot.initial
        if isinstance(initial, str):
            initial = float(getattr(optimizer, initial))
        if hasattr(state, "dtype"):
            # Of the whole optimizer, of which parameter groups make several: the first variable tells them apart.
            owner = next(iter(ranks))
            found.append((Slot(name, {}, initial, {owner: ()}, "float32"), {owner: state}))
            continue
        variables = {}
        dims = {}
        # Not strict: the list is empty if the optimizer keeps no such state.
        for (path, rank), variable in zip(ranks.items(), state, strict=False):
            dims_of_slot = list(range(rank))
            if slot.without is not None:
                # Keras has a scalar without a meaning in place of a factored moment of a vector.
                if rank < _LEAST_FACTORED:
                    continue
                del dims_of_slot[-slot.without]
            if variable is None:
                continue
            variables[path] = variable
            dims[path] = tuple(dims_of_slot)
        if variables:
            found.append((Slot(name, dims, initial), variables))
    return found


def _clip_arguments(config: ClipConfig) -> dict[str, object]:
    arguments = {}
    for key, argument in _CLIP_ARGUMENTS.items():
        limit = getattr(config, key)
        # Keras rejects several kinds of clipping at once, so the others are left out.
        if limit is not None:
            arguments[argument] = limit
    return arguments


def keras_schedule(config: OptimizerConfig, total_steps: int, keras: Any) -> object:
    """Returns a constant rate, Keras's own schedule, or a table of the runner's rates where Keras has none."""
    base = config.learning_rate
    schedule = config.schedule
    schedules = keras.optimizers.schedules
    if is_constant(schedule):
        return base
    span = decay_span(schedule, total_steps)
    if schedule.name == "cosine":
        if not schedule.warmup_steps:
            return schedules.CosineDecay(base, span, schedule.final_factor)
        first = base * schedule.initial_factor
        return schedules.CosineDecay(
            first, span, schedule.final_factor, warmup_target=base, warmup_steps=schedule.warmup_steps
        )
    # Keras's other schedules have no warm-up.
    if schedule.warmup_steps:
        return _tabulated(config, total_steps, keras)
    if schedule.name in ("linear", "polynomial"):
        power = schedule.power if schedule.name == "polynomial" else 1.0
        return schedules.PolynomialDecay(base, span, base * schedule.final_factor, power)
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
