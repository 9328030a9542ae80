"""Adam (Kingma and Ba, 2015) and AdamW, its form with decoupled weight decay (Loshchilov and Hutter, 2019)."""

from __future__ import annotations

from dataclasses import replace

from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig
from runner.engine.optim.base import (
    OptimizerEntry,
    Rule,
    Slots,
)

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


def _make_rule(config: OptimizerConfig, xp: Arrays) -> Rule:
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


ADAM = OptimizerEntry(
    keys=("beta_1", "beta_2", "epsilon"),
    make_rule=_make_rule,
    keras_class="Adam",
    bug_keys=("frozen_step", "reread_slots"),
)
ADAMW = replace(ADAM, keys=(*ADAM.keys, "weight_decay"), keras_class="AdamW", bug_keys=())
