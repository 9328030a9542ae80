"""Learning rates as functions of the step, with the formulas of tf_keras 2.21's schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType

from runner import arrays
from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig, ScheduleConfig

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
      total_steps: steps of the whole training; the cosine ends there where `decay_steps` is null.
      ops: `math`, or the module of the tensors, `tensorflow` or `jax.numpy`.
    """
    base = config.learning_rate
    schedule = config.schedule
    xp = arrays.of(ops)
    if schedule.name == "cosine":
        return base * _cosine(schedule, step, total_steps, xp)
    if schedule.name == "exponential":
        exponent = step / float(schedule.decay_steps or 1)
        exponent = xp.floor(exponent) if schedule.staircase else exponent
        return base * xp.power(schedule.decay_rate, exponent)
    if schedule.name == "piecewise":
        factor = schedule.factors[0]
        for boundary, before, after in zip(schedule.boundaries, schedule.factors, schedule.factors[1:], strict=False):
            factor = factor + (after - before) * xp.number(step > boundary)
        return base * factor
    return xp.number(base)


def _cosine(schedule: ScheduleConfig, step: Tensor, total_steps: int, xp: Arrays) -> Tensor:
    """Linear rise from 0, then half a cosine (Loshchilov and Hutter, 2017) down to `final_factor`."""
    warmup = schedule.warmup_steps
    final = schedule.final_factor
    span = cosine_span(schedule, total_steps)
    progress = xp.minimum(xp.maximum(step - float(warmup), 0.0) / float(span), 1.0)
    cosine = final + (1 - final) * 0.5 * (1 + xp.cos(math.pi * progress))
    if not warmup:
        return cosine
    rising = 1 - xp.number(step > warmup - 1)
    return rising * (step / float(warmup)) + (1 - rising) * cosine


def cosine_span(schedule: ScheduleConfig, total_steps: int) -> int:
    """Returns the steps that a cosine takes to fall, after its warm-up: what is left of training where none is set."""
    return schedule.decay_steps or max(total_steps - schedule.warmup_steps, 1)
