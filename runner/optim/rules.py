"""Optimizers as pure functions: old weights, slots and gradients in, new weights and slots out.

The formulas are those of tf_keras 2.21's optimizers, which `runner.optim.stock` makes for comparison. They are written
out because the stock ones assign a slot and read it back in one step, and DTensor's all-reduce combiner moves such a
read before the assignment: every update is then one step stale. A function that reads all before it writes all has no
such order to lose. Each formula is written once, for any array module that `runner.arrays` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from runner import arrays
from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig

RULE_KEYS: Mapping[str, tuple[str, ...]] = {
    "adam": ("beta_1", "beta_2", "epsilon"),
    "adamw": ("beta_1", "beta_2", "epsilon", "weight_decay"),
    "sgd": ("momentum", "nesterov"),
    "rmsprop": ("rho", "momentum", "epsilon", "centered"),
}

Slots = dict[str, Tensor]
Update = Callable[[Tensor, Tensor, Slots, Tensor, Tensor], tuple[Tensor, Slots]]


@dataclass(frozen=True)
class Rule:
    """An optimizer's update of one variable.

    Attributes:
      slots: names of the state that each variable has, of the variable's shape and layout, zero at the start.
      update: (gradient, weight, slots, learning rate, step from 1) -> (new weight, new slots); all tensors.
      elementwise: each element's update depends on that element of weight, gradient and slots alone, so that several
        variables may be updated as one vector. False of a rule that takes norms or products of a whole variable, as
        LAMB and Muon do.
      apply: (weight, new slots, learning rate, step from 1) -> new weight, where the slots alone give it.
    """

    slots: tuple[str, ...]
    update: Update
    elementwise: bool
    apply: Callable[[Tensor, Slots, Tensor, Tensor], Tensor] | None = None


def make_rule(config: OptimizerConfig, ops: ModuleType) -> Rule:
    """Returns the update rule of a checked config.

    Args:
      config: kind and numbers.
      ops: the module of the tensors, `tensorflow` or `jax.numpy`.
    """
    return {"adam": _adam, "adamw": _adam, "sgd": _sgd, "rmsprop": _rmsprop}[config.name](config, arrays.of(ops))


def _adam(config: OptimizerConfig, xp: Arrays) -> Rule:
    """Adam (Kingma and Ba, 2015); with `weight_decay`, AdamW (Loshchilov and Hutter, 2019)."""
    b1 = float(config.beta_1 or 0)
    b2 = float(config.beta_2 or 0)
    epsilon = float(config.epsilon or 0)
    decay = config.weight_decay or 0.0

    def apply(w: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Tensor:
        step = step * 0 + 1 if config.frozen_step else step
        alpha = rate * xp.sqrt(1 - xp.power(b2, step)) / (1 - xp.power(b1, step))
        return w - slots["m"] * alpha / (xp.sqrt(slots["v"]) + epsilon)

    def update(g: Tensor, w: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> tuple[Tensor, Slots]:
        if decay:
            w = w - w * (decay * rate)
        m = slots["m"] + (g - slots["m"]) * (1 - b1)
        v = slots["v"] + (xp.square(g) - slots["v"]) * (1 - b2)
        new = {"m": m, "v": v}
        return apply(w, new, rate, step), new

    return Rule(("m", "v"), update, elementwise=True, apply=apply)


def _sgd(config: OptimizerConfig, xp: Arrays) -> Rule:
    del xp
    momentum = config.momentum or 0.0

    def update(g: Tensor, w: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> tuple[Tensor, Slots]:
        del step
        if not momentum:
            return w - g * rate, {}
        velocity = slots["momentum"] * momentum - g * rate
        change = velocity * momentum - g * rate if config.nesterov else velocity
        return w + change, {"momentum": velocity}

    return Rule(("momentum",) if momentum else (), update, elementwise=True)


def _rmsprop(config: OptimizerConfig, xp: Arrays) -> Rule:
    """RMSprop (Tieleman and Hinton, 2012), by the variance with `centered` (Graves, 2013)."""
    rho = float(config.rho or 0)
    momentum = config.momentum or 0.0
    epsilon = float(config.epsilon or 0)

    def update(g: Tensor, w: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> tuple[Tensor, Slots]:
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
    return Rule(names, update, elementwise=True)


def average(decay: float, old: Tensor, weight: Tensor, step: Tensor, ops: ModuleType) -> Tensor:
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
