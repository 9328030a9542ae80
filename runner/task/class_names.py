"""Names of classes: those of the config or the dataset, or numbers up to the largest label of the train split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runner.data.base import Array, ArraySpec, DataSource, column
from runner.errors import invalid
from runner.task.base import TaskData

KEY = "task.classes"
# Name of the number of classes among `Task.constants`.
CONSTANT = "classes"


def resolve(setting: Any, spec: ArraySpec, data: TaskData, count: Callable[[], int]) -> tuple[str, ...]:
    """Returns the class names, which are numbers if nothing names the classes."""
    if isinstance(setting, list):
        return tuple(map(str, setting))
    if setting is None and spec.names:
        return tuple(spec.names)
    if setting is not None:
        number = int(setting)
    elif CONSTANT in data.constants:
        number = int(data.constants[CONSTANT][0])
    else:
        number = count()
    return tuple(str(label) for label in range(number))


def known_labels(train: DataSource | None, target: str, example: int) -> Array:
    """Returns the labels of the train split, whose classes are counted.

    Args:
      train: the split; None: it is not known.

    Raises:
      ConfigError: the split can't be read as a whole.
    """
    labels = None if train is None else column(train, target)
    if labels is None:
        raise invalid(
            KEY,
            None,
            problem=f"needs the number of classes, which array {target} does not show",
            fix=f"set it, such as {KEY}={example}",
        )
    return labels


def whole(labels: Array, target: str) -> Array:
    """Returns labels that may be stored as floats, as integers.

    Raises:
      ConfigError: one is a fraction.
    """
    if labels.dtype.kind != "f":
        return labels
    fractions = labels[labels != np.floor(labels)]
    if fractions.size:
        raise invalid(
            "task.target",
            target,
            problem=f"must have class indices, but one example has {fractions.flat[0]:g}",
            fix="set task=regression, or store the index of the class",
        )
    return np.asarray(labels.astype(np.int64))


def check_range(labels: Array, classes: int, target: str, split: str, fix: Callable[[int], str]) -> None:
    """Checks that labels are from 0 to classes - 1.

    Raises:
      ConfigError: one is not.
    """
    low = int(labels.min(initial=0))
    high = int(labels.max(initial=0))
    if low >= 0 and high < classes:
        return
    wrong = high
    if low < 0:
        wrong = low
    raise invalid(
        "task.target",
        target,
        problem=f"labels must be from 0 to {classes - 1}, but the {split} split has {wrong}",
        fix=fix(wrong),
    )
