"""Update rules as pure functions: old weights, slots and gradients in, new weights and slots out.

The formulas are those of tf_keras 2.21's optimizers, which `.stock` makes for comparison. They are written
out because the stock ones assign a slot and read it back in one step, and DTensor's all-reduce combiner moves such a
read before the assignment: every update is then one step stale. A function that reads all before it writes all has no
such order to lose. Each formula is written once, for any array module that `runner.arrays` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from runner import arrays
from runner.arrays import Tensor
from runner.config.schema import OptimizerConfig
from runner.engine.optim.base import Rule
from runner.engine.optim.registry import OPTIMIZERS

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
