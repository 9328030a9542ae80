"""Table of optimizers: `optimizer.name` -> entry.

To add an optimizer: a module of its own with an `OptimizerEntry`, a line here, and conf/optimizer/<name>.yaml. A key
that no optimizer has yet also needs a field in `runner.config.schema.OptimizerConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.engine.optim.adam import (
    ADAM,
    ADAMW,
)
from runner.engine.optim.base import OptimizerEntry
from runner.engine.optim.rmsprop import RMSPROP
from runner.engine.optim.sgd import SGD

OPTIMIZERS: Mapping[str, OptimizerEntry] = {
    "adam": ADAM,
    "adamw": ADAMW,
    "sgd": SGD,
    "rmsprop": RMSPROP,
    "keras": OptimizerEntry(is_keras_class=True),
    "optax": OptimizerEntry(is_transformation=True),
}
