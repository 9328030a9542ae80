"""RMSprop (Tieleman and Hinton, 2012), optionally centered: scaled by the variance (Graves, 2013)."""

from __future__ import annotations

from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig
from runner.engine.optim.base import (
    OptimizerEntry,
    Rule,
    Slots,
)


def _make_rule(config: OptimizerConfig, xp: Arrays) -> Rule:
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


RMSPROP = OptimizerEntry(
    keys=("rho", "momentum", "epsilon", "centered"),
    make_rule=_make_rule,
    keras_class="RMSprop",
)
