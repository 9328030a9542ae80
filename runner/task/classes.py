"""Classes of a task: their names, the check of labels, and their weights in the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from runner.data.base import Array, ArraySpec, DataSource
from runner.errors import did_you_mean, invalid, listed
from runner.task.base import TaskData

_KEY = "task.classes"
_WEIGHTS_KEY = "task.class_weights"
# Names of the number of classes, and of their weights, among `Task.constants`.
COUNT = "classes"
WEIGHTS = "class_weights"
_BALANCED = "balanced"


def names_of(setting: Any, spec: ArraySpec, data: TaskData, count: Callable[[], int]) -> tuple[str, ...]:
    """Returns the names of classes: those of the config or the dataset, or numbers.

    `count` is called where neither `task.classes`, the dataset nor a resumed run knows the number.
    """
    if isinstance(setting, list):
        return tuple(map(str, setting))
    if setting is None and spec.names:
        return tuple(spec.names)
    if setting is not None:
        number = int(setting)
    elif COUNT in data.constants:
        number = int(data.constants[COUNT][0])
    else:
        number = count()
    return tuple(map(str, range(number)))


def known_labels(train: DataSource | None, target: str) -> Array:
    """Returns the labels of the train split, whose classes are counted.

    Raises:
      ConfigError: the split is not known, or can't be read as a whole.
    """
    if train is not None:
        labels = train.column(target)
        if labels is not None:
            return labels
    problem = f"needs the number of classes, which array {target} does not show"
    raise invalid(_KEY, None, problem=problem, fix=f"set it, such as {_KEY}=10")


def whole(labels: Array, target: str) -> Array:
    """Returns labels that may be stored as floats, as integers. Raises ConfigError if one is a fraction."""
    if labels.dtype.kind != "f":
        return labels
    fractions = labels[labels != np.floor(labels)]
    if fractions.size:
        problem = f"must have class indices, but one example has {fractions.flat[0]:g}"
        fix = "set task=regression, or store the index of the class"
        raise invalid("task.target", target, problem=problem, fix=fix)
    return np.asarray(labels.astype(np.int64))


def check_range(
    labels: Array, classes: int, target: str, split: str, fix: Callable[[int], str], *, key: str = "task.target"
) -> None:
    """Checks that labels, integers of any shape, are from 0 to classes - 1; `fix` is called with one that is not.

    `key` names their array, `target`; tokens that a model reads are checked as those that it predicts.
    """
    low = int(labels.min(initial=0))
    high = int(labels.max(initial=0))
    if low >= 0 and high < classes:
        return
    wrong = low if low < 0 else high
    what = "labels" if key == "task.target" else "tokens"
    problem = f"{what} must be from 0 to {classes - 1}, but the {split} split has {wrong}"
    raise invalid(key, target, problem=problem, fix=fix(wrong))


def weights_of(
    setting: Any, names: Sequence[str], data: TaskData, count: Callable[[DataSource], Array]
) -> tuple[list[float] | None, dict[str, Sequence[float]]]:
    """Returns the weight of each class by `task.class_weights`, in label order, and what `Task.constants` has of them.

    Weights that the config lists are no constants, as a resumed run may change them.

    Args:
      setting: None: all weights are 1, and the first result is None.
      count: returns the number of examples (C,) of each class in the train split, for `balanced`.

    Raises:
      ConfigError: the setting does not fit the classes.
    """
    if setting is None:
        return None, {}
    if setting == _BALANCED:
        weights = list(data.constants.get(WEIGHTS, ()))
        if not weights:
            if data.train is None:
                problem = "is computed from the train split, which is not loaded here"
                raise invalid(_WEIGHTS_KEY, setting, problem=problem, fix="remove it")
            weights = balanced(count(data.train))
        return weights, {WEIGHTS: weights}
    if isinstance(setting, Mapping):
        weight_of = dict.fromkeys(names, 1.0)
        for name, weight in setting.items():
            if str(name) not in names:
                fix = did_you_mean(str(name), names, f"name one of {listed(names)}")
                raise invalid(f"{_WEIGHTS_KEY}.{name}", weight, problem="unknown class", fix=fix)
            weight_of[str(name)] = float(weight)
        return [weight_of[name] for name in names], {}
    if len(setting) != len(names):
        fix = "list one weight per class, or map class names to weights, such as {cat: 2.0}"
        raise invalid(_WEIGHTS_KEY, setting, problem=f"needs {len(names)} weights, one per class", fix=fix)
    return list(map(float, setting)), {}


def balanced(examples: Array) -> list[float]:
    """Returns examples / (classes * examples of the class) of counts (C,); classes without examples have 1."""
    has_examples = examples > 0
    weights = examples.sum() / (has_examples.sum() * np.where(has_examples, examples, 1))
    return list(map(float, np.where(has_examples, weights, 1.0)))
