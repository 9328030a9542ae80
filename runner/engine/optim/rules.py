"""Update rules as pure functions: old weights, slots and gradients in, new weights and slots out.

The formulas are those of tf_keras 2.21's optimizers, which `.stock` makes for comparison. They are written
out because the stock ones assign a slot and read it back in one step, and DTensor's all-reduce combiner moves such a
read before the assignment: every update is then one step stale. A function that reads all before it writes all has no
such order to lose. Each formula is written once, for any array module that `runner.arrays` knows.

To add an optimizer: its rule, a line in `OPTIMIZERS`, and conf/optimizer/<name>.yaml. A key that no optimizer has yet
also needs a field in `runner.config.schema.OptimizerConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType

from runner import arrays
from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig
from runner.engine.optim.base import OptimizerEntry, Rule, Slots

# TensorFlow's tutorial on DTensor and Keras trains its 784-128-10 network with Adam at 0.01, and so do our figures.
_TUTORIAL_BUILDERS = ("runner.model.mlp.", "runner.model.core.")
_TUTORIAL_RATE = 0.01
# The default of Keras's Adam. At ten times that rate, convolutional networks and transformers often don't learn.
_KERAS_RATE = 0.001


def adam_learning_rate(builder: str) -> float:
    """Returns the default learning rate of Adam for a model, which conf/optimizer/adam.yaml refers to."""
    if str(builder).startswith(_TUTORIAL_BUILDERS):
        return _TUTORIAL_RATE
    return _KERAS_RATE


def _adam(config: OptimizerConfig, xp: Arrays) -> Rule:
    """Returns Adam (Kingma and Ba, 2015), or AdamW with decoupled decay (Loshchilov and Hutter, 2019)."""
    beta_1 = float(config.beta_1 or 0)
    beta_2 = float(config.beta_2 or 0)
    epsilon = float(config.epsilon or 0)
    weight_decay = config.weight_decay or 0.0

    def apply(weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Tensor:
        if config.frozen_step:
            # 1, whatever the step. Computed from the step it is a tensor of the same dtype and layout, and the formula
            # below needs no second form for a Python number.
            step = step * 0 + 1
        bias_corrected_rate = rate * xp.sqrt(1 - xp.power(beta_2, step)) / (1 - xp.power(beta_1, step))
        return weight - slots["m"] * bias_corrected_rate / (xp.sqrt(slots["v"]) + epsilon)

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> tuple[Tensor, Slots]:
        if weight_decay:
            weight = weight - weight * (weight_decay * rate)
        new_slots = {
            "m": slots["m"] + (gradient - slots["m"]) * (1 - beta_1),
            "v": slots["v"] + (xp.square(gradient) - slots["v"]) * (1 - beta_2),
        }
        return apply(weight, new_slots, rate, step), new_slots

    return Rule(("m", "v"), update, apply=apply)


def _sgd(config: OptimizerConfig, xp: Arrays) -> Rule:
    """Returns stochastic gradient descent: plain, with momentum, or with Nesterov momentum."""
    del xp
    momentum = config.momentum or 0.0

    def update_plain(
        gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        del slots, step
        return weight - gradient * rate, {}

    def update_with_momentum(
        gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        del step
        velocity = slots["momentum"] * momentum - gradient * rate
        change = velocity
        if config.nesterov:
            change = velocity * momentum - gradient * rate
        return weight + change, {"momentum": velocity}

    # Without momentum there is no state to keep in memory and in checkpoints.
    if not momentum:
        return Rule((), update_plain)
    return Rule(("momentum",), update_with_momentum)


def _rmsprop(config: OptimizerConfig, xp: Arrays) -> Rule:
    """Returns RMSprop (Tieleman and Hinton, 2012), or centered: scaled by the variance (Graves, 2013)."""
    rho = float(config.rho or 0)
    momentum = config.momentum or 0.0
    epsilon = float(config.epsilon or 0)

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> tuple[Tensor, Slots]:
        del step
        new_slots = {"velocity": slots["velocity"] * rho + xp.square(gradient) * (1 - rho)}
        denominator = new_slots["velocity"] + epsilon
        if config.centered:
            new_slots["average"] = slots["average"] * rho + gradient * (1 - rho)
            denominator = new_slots["velocity"] - xp.square(new_slots["average"]) + epsilon
        change = gradient * rate * xp.rsqrt(denominator)
        if momentum:
            change = slots["momentum"] * momentum + change
            new_slots["momentum"] = change
        return weight - change, new_slots

    # Only slots that are used take memory and space in checkpoints.
    slot_names = ["velocity"]
    if config.centered:
        slot_names.append("average")
    if momentum:
        slot_names.append("momentum")
    return Rule(tuple(slot_names), update)


_ADAM = OptimizerEntry(
    keys=("beta_1", "beta_2", "epsilon"),
    make_rule=_adam,
    keras_class="Adam",
    bug_keys=("frozen_step", "reread_slots"),
)
# `optimizer.name` -> entry.
OPTIMIZERS: Mapping[str, OptimizerEntry] = {
    "adam": _ADAM,
    "adamw": replace(_ADAM, keys=(*_ADAM.keys, "weight_decay"), keras_class="AdamW", bug_keys=()),
    "sgd": OptimizerEntry(keys=("momentum", "nesterov"), make_rule=_sgd, keras_class="SGD"),
    "rmsprop": OptimizerEntry(
        keys=("rho", "momentum", "epsilon", "centered"), make_rule=_rmsprop, keras_class="RMSprop"
    ),
    "keras": OptimizerEntry(is_keras_class=True),
    "optax": OptimizerEntry(is_transformation=True),
}
# Optimizer -> keys of the config that its rule uses.
RULE_KEYS: Mapping[str, tuple[str, ...]] = {name: entry.keys for name, entry in OPTIMIZERS.items()}


def make_rule(config: OptimizerConfig, ops: ModuleType) -> Rule:
    """Returns the update rule of a checked config."""
    make = OPTIMIZERS[config.name].make_rule
    assert make is not None, "checked: only engines with JAX get an optimizer without a rule"
    return make(config, arrays.of(ops))


def average(decay: float, old: Tensor, weight: Tensor, step: Tensor, ops: ModuleType) -> Tensor:
    """Returns the new exponential moving average (EMA), by Keras 3's formula; at step 0 it becomes the weight."""
    kept_share = arrays.of(ops).to_float(step > 0) * decay
    return old * kept_share + weight * (1 - kept_share)
