"""Learning rates as functions of the step, with the formulas of Keras's schedules where it has one.

A schedule is a factor of the base rate, and a linear warm-up may precede any. Each formula is written once, for Python
numbers and for tensors: the rate of a step is computed on the devices, and once more for the log, checks and pictures.

To add a schedule: its formula and an entry in `SCHEDULES`, and its name in conf/optimizer/_base.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from runner import arrays
from runner.arrays import Elementary, Tensor
from runner.config.schema import OptimizerConfig, ScheduleConfig

# Keys of `optimizer.schedule` that every schedule uses.
WARMUP_KEYS = ("warmup_steps", "initial_factor")

# (config, steps done before this one, steps of the run, functions of the step) -> factor of the base rate
Factor = Callable[[OptimizerConfig, Tensor, int, Elementary], Tensor]


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule: its keys in `optimizer.schedule` beside those of the warm-up, and its formula without that."""

    keys: tuple[str, ...]
    factor: Factor


def learning_rate(config: OptimizerConfig, step: Tensor, total_steps: int, ops: ModuleType = math) -> Tensor:
    """Returns the learning rate after `step` steps: a number with `ops=math`, else a float32 tensor."""
    base = config.learning_rate
    schedule = config.schedule
    xp = arrays.elementary(ops)
    entry = SCHEDULES[schedule.name]
    warmup = schedule.warmup_steps
    if is_constant(schedule):
        return xp.to_float(base)
    factor = entry.factor(config, step, total_steps, xp)
    if not warmup:
        return base * factor
    # The warm-up ends where the schedule begins, at 1 or at a first factor of the user's.
    first = float(entry.factor(config, warmup, total_steps, arrays.NUMBERS))
    rise = step / float(warmup)
    if schedule.initial_factor:
        rise = schedule.initial_factor + (1 - schedule.initial_factor) * rise
    if first != 1.0:
        rise = rise * first
    # A sum of products with 0 and 1: a traced step can't be tested by an `if`, and Python numbers have no `where`.
    is_rising = 1 - xp.to_float(step > warmup - 1)
    return base * (is_rising * rise + (1 - is_rising) * factor)


def is_constant(schedule: ScheduleConfig) -> bool:
    """Returns whether all steps have one learning rate."""
    return schedule.name == "constant" and not schedule.warmup_steps


def _after_warmup(schedule: ScheduleConfig, step: Tensor, xp: Elementary) -> Tensor:
    if not schedule.warmup_steps:
        return step
    return xp.maximum(step - float(schedule.warmup_steps), 0.0)


def _progress(schedule: ScheduleConfig, step: Tensor, total_steps: int, xp: Elementary) -> Tensor:
    span = decay_span(schedule, total_steps)
    return xp.minimum(xp.maximum(step - float(schedule.warmup_steps), 0.0) / float(span), 1.0)


def decay_span(schedule: ScheduleConfig, total_steps: int) -> int:
    """Returns the steps from the warm-up to the final factor; by default the rest of the training."""
    return schedule.decay_steps or max(total_steps - schedule.warmup_steps, 1)


def _constant(config: OptimizerConfig, step: Tensor, total_steps: int, xp: Elementary) -> Tensor:
    del config, step, total_steps
    return xp.to_float(1.0)


def _polynomial(config: OptimizerConfig, step: Tensor, total_steps: int, xp: Elementary) -> Tensor:
    schedule = config.schedule
    rest = 1 - _progress(schedule, step, total_steps, xp)
    if schedule.name == "polynomial":
        rest = xp.power(rest, schedule.power)
    return schedule.final_factor + (1 - schedule.final_factor) * rest


def _cosine(config: OptimizerConfig, step: Tensor, total_steps: int, xp: Elementary) -> Tensor:
    """Returns half a cosine down to `final_factor` (Loshchilov and Hutter, 2017)."""
    final = config.schedule.final_factor
    progress = _progress(config.schedule, step, total_steps, xp)
    return final + (1 - final) * 0.5 * (1 + xp.cos(math.pi * progress))


def _exponential(config: OptimizerConfig, step: Tensor, total_steps: int, xp: Elementary) -> Tensor:
    del total_steps
    schedule = config.schedule
    exponent = _after_warmup(schedule, step, xp) / float(schedule.decay_steps or 1)
    if schedule.staircase:
        exponent = xp.floor(exponent)
    return xp.power(schedule.decay_rate, exponent)


def _piecewise(config: OptimizerConfig, step: Tensor, total_steps: int, xp: Elementary) -> Tensor:
    """Returns the factor of the step's piece, as a sum of the changes at the boundaries that are passed."""
    del total_steps
    factors = config.schedule.factors
    factor = factors[0]
    # A checked config has one factor more than boundaries: one before each boundary, and one after the last.
    for boundary, before, after in zip(config.schedule.boundaries, factors[:-1], factors[1:], strict=True):
        factor = factor + (after - before) * xp.to_float(step > boundary)
    return factor


def description(config: OptimizerConfig) -> str:
    """Returns a schedule in words, such as `cosine schedule after 100 steps of warm-up`; empty if it is constant."""
    schedule = config.schedule
    words = ""
    if schedule.name != "constant":
        words = f"{schedule.name} schedule"
    warmup = f"{schedule.warmup_steps:,} steps of warm-up"
    if not schedule.warmup_steps:
        return words
    if words:
        return f"{words} after {warmup}"
    return warmup


# A message about a key suggests the first schedule that has it.
SCHEDULES: Mapping[str, ScheduleEntry] = {
    "constant": ScheduleEntry((), _constant),
    "cosine": ScheduleEntry(("decay_steps", "final_factor"), _cosine),
    "exponential": ScheduleEntry(("decay_steps", "decay_rate", "staircase"), _exponential),
    "piecewise": ScheduleEntry(("boundaries", "factors"), _piecewise),
    "linear": ScheduleEntry(("decay_steps", "final_factor"), _polynomial),
    "polynomial": ScheduleEntry(("decay_steps", "final_factor", "power"), _polynomial),
}
