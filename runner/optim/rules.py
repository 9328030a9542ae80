"""Optimizers as pure functions: old weights, slots and gradients in, new weights and slots out.

The formulas are those of tf_keras 2.21's optimizers, which `reference` makes for comparison. They are written out
because the stock ones assign a slot and read it back in one step, and DTensor's all-reduce combiner moves such a read
before the assignment: every update is then one step stale. A function that reads all before it writes all has no such
order to lose. Each formula is written once, for any array module that `runner.arrays` knows.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner import arrays
from runner.arrays import Arrays
from runner.config.schema import ClipConfig, OptimizerConfig, ScheduleConfig

RULE_KEYS: Mapping[str, tuple[str, ...]] = {
    "adam": ("beta_1", "beta_2", "epsilon"),
    "adamw": ("beta_1", "beta_2", "epsilon", "weight_decay"),
    "sgd": ("momentum", "nesterov"),
    "rmsprop": ("rho", "momentum", "epsilon", "centered"),
}
SCHEDULE_KEYS: Mapping[str, tuple[str, ...]] = {
    "constant": (),
    "cosine": ("warmup_steps", "decay_steps", "final_factor"),
    "exponential": ("decay_steps", "decay_rate", "staircase"),
    "piecewise": ("boundaries", "factors"),
}

Slots = dict[str, Any]
Update = Callable[[Any, Any, Slots, Any, Any], tuple[Any, Slots]]


@dataclass(frozen=True)
class Rule:
    """An optimizer's update of one variable.

    Attributes:
      slots: names of the state that each variable has, of the variable's shape and layout, zero at the start.
      update: (gradient, weight, slots, learning rate, step from 1) -> (new weight, new slots); all tensors.
      apply: (weight, new slots, learning rate, step from 1) -> new weight, where the slots alone give it.
    """

    slots: tuple[str, ...]
    update: Update
    apply: Callable[[Any, Slots, Any, Any], Any] | None = None


def make_rule(config: OptimizerConfig, ops: Any = None) -> Rule:
    """Returns the update rule of a checked config.

    Args:
      config: kind and numbers.
      ops: the module of the tensors, `tensorflow` or `jax.numpy`; null: TensorFlow, imported here.
    """
    ops = ops or importlib.import_module("tensorflow")
    return {"adam": _adam, "adamw": _adam, "sgd": _sgd, "rmsprop": _rmsprop}[config.name](config, arrays.of(ops))


def _adam(config: OptimizerConfig, xp: Arrays) -> Rule:
    """Adam (Kingma and Ba, 2015); with `weight_decay`, AdamW (Loshchilov and Hutter, 2019)."""
    b1, b2, epsilon = float(config.beta_1 or 0), float(config.beta_2 or 0), float(config.epsilon or 0)
    decay = config.weight_decay or 0.0

    def apply(w: Any, slots: Slots, rate: Any, step: Any) -> Any:
        step = step * 0 + 1 if config.frozen_step else step
        alpha = rate * xp.sqrt(1 - xp.power(b2, step)) / (1 - xp.power(b1, step))
        return w - slots["m"] * alpha / (xp.sqrt(slots["v"]) + epsilon)

    def update(g: Any, w: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        if decay:
            w = w - w * (decay * rate)
        m = slots["m"] + (g - slots["m"]) * (1 - b1)
        v = slots["v"] + (xp.square(g) - slots["v"]) * (1 - b2)
        new = {"m": m, "v": v}
        return apply(w, new, rate, step), new

    return Rule(("m", "v"), update, apply)


def _sgd(config: OptimizerConfig, xp: Arrays) -> Rule:
    del xp
    momentum = config.momentum or 0.0

    def update(g: Any, w: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        del step
        if not momentum:
            return w - g * rate, {}
        velocity = slots["momentum"] * momentum - g * rate
        change = velocity * momentum - g * rate if config.nesterov else velocity
        return w + change, {"momentum": velocity}

    return Rule(("momentum",) if momentum else (), update)


def _rmsprop(config: OptimizerConfig, xp: Arrays) -> Rule:
    """RMSprop (Tieleman and Hinton, 2012), by the variance with `centered` (Graves, 2013)."""
    rho, momentum, epsilon = float(config.rho or 0), config.momentum or 0.0, float(config.epsilon or 0)

    def update(g: Any, w: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        del step
        new = {"velocity": slots["velocity"] * rho + xp.square(g) * (1 - rho)}
        denominator = new["velocity"] + epsilon
        if config.centered:
            new["average"] = slots["average"] * rho + g * (1 - rho)
            denominator = new["velocity"] - xp.square(new["average"]) + epsilon
        change = g * rate * xp.rsqrt(denominator)
        if momentum:
            change = new["momentum"] = slots["momentum"] * momentum + change
        return w - change, new

    names = ("velocity", *(["average"] if config.centered else []), *(["momentum"] if momentum else []))
    return Rule(names, update)


def clip(config: ClipConfig, gradients: list[Any], ops: Any = None) -> list[Any]:
    """Clips gradients as the config says: each by its norm, all by their global norm, or each entry by value.

    Args:
      config: at most one of its keys is set.
      gradients: whole or split over a mesh.
      ops: the module of the tensors, `tensorflow` or `jax.numpy`; null: TensorFlow, imported here.
    """
    xp = arrays.of(ops or importlib.import_module("tensorflow"))
    if config.norm is not None:
        limit = config.norm
        return [g * limit / xp.maximum(xp.sqrt(xp.total(xp.square(g))), limit) for g in gradients]
    if config.global_norm is not None:
        norm = xp.sqrt(sum(xp.total(xp.square(g)) for g in gradients))
        return [g * (config.global_norm / xp.maximum(norm, config.global_norm)) for g in gradients]
    if config.value is not None:
        return [xp.minimum(xp.maximum(g, -config.value), config.value) for g in gradients]
    return gradients


def average(decay: float, old: Any, weight: Any, step: Any, ops: Any) -> Any:
    """Returns the new moving average of a weight, as Keras 3 has it: the first update sets it to the weight.

    Args:
      decay: what the average keeps of itself.
      old: average before.
      weight: after the update.
      step: steps done before this one, a float32 tensor.
      ops: the module of the tensors.
    """
    kept = arrays.of(ops).number(step > 0) * decay
    return old * kept + weight * (1 - kept)


def learning_rate(config: OptimizerConfig, step: Any, total_steps: int, ops: Any = math) -> Any:
    """Returns the learning rate of a step.

    Args:
      config: base rate and schedule.
      step: steps done before this one: a Python number with `ops=math`, else a float32 tensor.
      total_steps: steps of the whole training; the cosine ends there where `decay_steps` is null.
      ops: `math`, or the module of the tensors, `tensorflow` or `jax.numpy`.
    """
    base, schedule, xp = config.learning_rate, config.schedule, arrays.of(ops)
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


def _cosine(schedule: ScheduleConfig, step: Any, total_steps: int, xp: Arrays) -> Any:
    """Linear rise from 0, then half a cosine (Loshchilov and Hutter, 2017) down to `final_factor`."""
    warmup, final = schedule.warmup_steps, schedule.final_factor
    span = schedule.decay_steps or max(total_steps - warmup, 1)
    progress = xp.minimum(xp.maximum(step - float(warmup), 0.0) / float(span), 1.0)
    cosine = final + (1 - final) * 0.5 * (1 + xp.cos(math.pi * progress))
    if not warmup:
        return cosine
    rising = 1 - xp.number(step > warmup - 1)
    return rising * (step / float(warmup)) + (1 - rising) * cosine


def reference(config: OptimizerConfig, total_steps: int, keras: Any = None) -> Any:
    """Returns Keras's own optimizer for the config, the peer that is compared with on one device.

    Args:
      config: a checked config.
      total_steps: steps of the whole training.
      keras: `tf_keras` or Keras 3; null: tf_keras, imported here.
    """
    keras = keras or importlib.import_module("tf_keras")
    clip_keys = {"norm": "clipnorm", "global_norm": "global_clipnorm", "value": "clipvalue"}
    arguments: dict[str, Any] = {clip_keys[k]: v for k, v in vars(config.clip).items() if v is not None}
    arguments |= {key: getattr(config, key) for key in RULE_KEYS[config.name]}
    arguments["learning_rate"] = _reference_schedule(config, total_steps, keras.optimizers.schedules)
    kind = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop"}[config.name]
    return getattr(keras.optimizers, kind)(**arguments)


def _reference_schedule(config: OptimizerConfig, total_steps: int, schedules: Any) -> Any:
    base, schedule = config.learning_rate, config.schedule
    if schedule.name == "cosine":
        span = schedule.decay_steps or max(total_steps - schedule.warmup_steps, 1)
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
