"""Learning rates as functions of the step, with the formulas of tf_keras 2.21's schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType

from runner import arrays
from runner.arrays import Elementary, Tensor
from runner.config.schema import OptimizerConfig, ScheduleConfig

# Schedule -> keys of `optimizer.schedule` that it uses.
SCHEDULE_KEYS: Mapping[str, tuple[str, ...]] = {
    "constant": (),
    "cosine": ("warmup_steps", "decay_steps", "final_factor"),
    "exponential": ("decay_steps", "decay_rate", "staircase"),
    "piecewise": ("boundaries", "factors"),
}


def learning_rate(config: OptimizerConfig, step: Tensor, total_steps: int, ops: ModuleType = math) -> Tensor:
    """Returns the learning rate of a step.

    Args:
      config: base rate and schedule.
      step: steps done before this one: a Python number with `ops=math`, else a float32 tensor.
      total_steps: steps of the whole training; the cosine ends there if `decay_steps` is null.
      ops: `math`, or the module of the tensors, `tensorflow`, `jax.numpy` or `numpy`.
    """
    base = config.learning_rate
    schedule = config.schedule
    xp = arrays.elementary(ops)
    if schedule.name == "cosine":
        return base * _cosine(schedule, step, total_steps, xp)
    if schedule.name == "exponential":
        exponent = step / float(schedule.decay_steps or 1)
        if schedule.staircase:
            exponent = xp.floor(exponent)
        return base * xp.power(schedule.decay_rate, exponent)
    if schedule.name == "piecewise":
        return base * _piecewise(schedule, step, xp)
    return xp.to_float(base)


def _cosine(schedule: ScheduleConfig, step: Tensor, total_steps: int, xp: Elementary) -> Tensor:
    """Returns a linear rise from 0, then half a cosine down to `final_factor`.

    Loshchilov and Hutter, 2017.
    """
    warmup = schedule.warmup_steps
    final = schedule.final_factor
    span = cosine_span(schedule, total_steps)
    progress = xp.minimum(xp.maximum(step - float(warmup), 0.0) / float(span), 1.0)
    cosine = final + (1 - final) * 0.5 * (1 + xp.cos(math.pi * progress))
    if not warmup:
        return cosine
    # A sum of products with 0 and 1: a traced step can't be tested by an `if`, and Python numbers have no `where`.
    is_rising = 1 - xp.to_float(step > warmup - 1)
    return is_rising * (step / float(warmup)) + (1 - is_rising) * cosine


def _piecewise(schedule: ScheduleConfig, step: Tensor, xp: Elementary) -> Tensor:
    """Returns the factor of the step's piece.

    It is a sum of the changes at the boundaries that are passed.
    """
    factors = schedule.factors
    factor = factors[0]
    # A checked config has one factor more than boundaries: one before each boundary, and one after the last.
    for boundary, before, after in zip(schedule.boundaries, factors[:-1], factors[1:], strict=True):
        factor = factor + (after - before) * xp.to_float(step > boundary)
    return factor


def cosine_span(schedule: ScheduleConfig, total_steps: int) -> int:
    """Returns the steps that the cosine takes to fall after its warm-up.

    By default, these are the rest of the training.
    """
    return schedule.decay_steps or max(total_steps - schedule.warmup_steps, 1)
