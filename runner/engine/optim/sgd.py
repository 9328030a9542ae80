"""Stochastic gradient descent: plain, with momentum, or with Nesterov momentum."""

from __future__ import annotations

from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig
from runner.engine.optim.base import (
    OptimizerEntry,
    Rule,
    Slots,
)


def _make_rule(config: OptimizerConfig, xp: Arrays) -> Rule:
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


SGD = OptimizerEntry(
    keys=("momentum", "nesterov"),
    make_rule=_make_rule,
    keras_class="SGD",
)
