"""Loss weights of classes: as a config lists them, or computed from the train split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from runner.data.base import Array, DataSource
from runner.errors import did_you_mean, invalid, listed
from runner.task.base import TaskData
from runner.task.supervised import required_train_split

KEY = "task.class_weights"
# Name of the weights among `Task.constants`.
CONSTANT = "class_weights"
_BALANCED = "balanced"


def resolve(
    setting: Any, names: Sequence[str], data: TaskData, count: Callable[[DataSource], Array]
) -> list[float] | None:
    """Returns one weight per class; None: all are 1.

    Args:
      count: returns the number of examples (C,) of each class in the train split.

    Raises:
      ConfigError: the setting does not fit the classes.
    """
    if setting is None:
        return None
    if setting == _BALANCED:
        if CONSTANT in data.constants:
            return list(data.constants[CONSTANT])
        return balanced(count(required_train_split(KEY, setting, data.train)))
    if isinstance(setting, Mapping):
        for name in setting:
            if str(name) not in names:
                fix = did_you_mean(str(name), names, f"name one of {listed(names)}")
                raise invalid(f"{KEY}.{name}", setting[name], problem="unknown class", fix=fix)
        weight_of = {str(name): float(weight) for name, weight in setting.items()}
        return [weight_of.get(name, 1.0) for name in names]
    if len(setting) != len(names):
        raise invalid(
            KEY,
            setting,
            problem=f"needs {len(names)} weights, one per class",
            fix="list one weight per class, or map class names to weights, such as {cat: 2.0}",
        )
    return [float(weight) for weight in setting]


def constants(setting: Any, weights: Sequence[float]) -> dict[str, Sequence[float]]:
    """Returns the weights among `Task.constants`; none if the config lists them, which a resumed run may change."""
    return {CONSTANT: weights} if setting == _BALANCED else {}


def balanced(examples: Array) -> list[float]:
    """Returns examples / (classes * examples of the class); classes without examples don't count and have 1.

    Args:
      examples: (C,), number of each class.
    """
    has_examples = examples > 0
    weights = examples.sum() / (has_examples.sum() * np.where(has_examples, examples, 1))
    return [float(weight) for weight in np.where(has_examples, weights, 1.0)]
