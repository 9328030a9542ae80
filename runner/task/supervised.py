"""Supervised tasks: the roles of a dataset's arrays, sample weights, and functions that several tasks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import TaskConfig
from runner.data.base import TARGETS, WEIGHT, Array, ArraySpec, DataSource, column
from runner.errors import did_you_mean, invalid, listed
from runner.task.base import LOSS, Task
from runner.task.metrics import MINIMIZE

# Examples that are read at a time from a source without whole columns: more would need memory for images that are
# then dropped, fewer would call the source more often.
_BLOCK = 256


@dataclass(frozen=True)
class Roles:
    """The roles of a dataset's arrays, by name.

    Attributes:
      inputs: arrays that the model takes.
      target: arrays that are predicted.
      example_weight: array that each example's loss is multiplied by (Keras's `sample_weight`); None: none.
    """

    inputs: tuple[str, ...]
    target: tuple[str, ...]
    example_weight: str | None

    @property
    def all(self) -> tuple[str, ...]:
        """All names, each once."""
        names = [*self.inputs, *self.target]
        if self.example_weight is not None:
            names.append(self.example_weight)
        return tuple(dict.fromkeys(names))


def default_target(arrays: Mapping[str, ArraySpec]) -> tuple[str, ...]:
    """Returns the target of a config that names none: the first of `TARGETS` that the dataset has, or nothing."""
    present = [name for name in TARGETS if name in arrays]
    return tuple(present[:1])


def roles(config: TaskConfig, arrays: Mapping[str, ArraySpec], *, needs_target: bool = True) -> Roles:
    """Returns the roles of a dataset's arrays.

    Raises:
      ConfigError: the dataset does not have an array that the config names, or has none for a role.
    """
    target = tuple(config.target) or default_target(arrays)
    _check_exist("task.target", target, arrays)
    _check_exist("task.inputs", config.inputs or (), arrays)
    example_weight = config.example_weight
    if example_weight is not None:
        _check_exist("task.example_weight", [example_weight], arrays)
    if needs_target and not target:
        example = next(iter(arrays), "price")
        raise invalid(
            "task.target",
            None,
            problem=f"{_has(arrays)}, of which none is named {', '.join(TARGETS[:-1])} or {TARGETS[-1]}",
            fix=f"name the array to predict, such as task.target={example}",
        )
    if config.inputs is None:
        inputs = tuple(name for name in arrays if name not in {*target, example_weight})
    else:
        inputs = tuple(config.inputs)
    if not inputs:
        raise invalid(
            "task.inputs",
            config.inputs,
            problem=f"needs at least one array; {_has(arrays)}",
            fix="name one, or remove task.inputs to use every array except the target",
        )
    if example_weight is not None:
        shape = arrays[example_weight].shape
        if shape not in ((), (1,)):
            raise invalid(
                "task.example_weight",
                example_weight,
                problem=f"must be an array of one number per example, but its shape is {list(shape)}",
                fix="name another array, or remove task.example_weight",
            )
    return Roles(inputs, target, example_weight)


def _check_exist(key: str, names: Sequence[str], arrays: Mapping[str, ArraySpec]) -> None:
    for name in names:
        if name not in arrays:
            fix = did_you_mean(name, arrays, "name one of these")
            raise invalid(key, name, problem=no_array(name, arrays), fix=fix)


def no_array(name: str, arrays: Mapping[str, ArraySpec]) -> str:
    """Returns the problem of a key that names an array which the dataset lacks."""
    return f"the dataset has no array {name!r} (its arrays: {listed(arrays)})"


def _has(arrays: Mapping[str, ArraySpec]) -> str:
    return f"the dataset has {listed(arrays)}"


class Supervised(Task):
    """A task with a target, inputs to predict it from, and perhaps sample weights."""

    def __init__(self, array_roles: Roles, arrays: Mapping[str, ArraySpec], metrics: Mapping[str, str]) -> None:
        self.arrays = {name: arrays[name] for name in array_roles.all}
        self.input_names = array_roles.inputs
        self.target_names = array_roles.target
        self.directions = {LOSS: MINIMIZE, **metrics}
        self.constants: Mapping[str, Sequence[float]] = {}
        self._example_weight = array_roles.example_weight

    def _sole_target(self, problem: str, fix: str = "name one array") -> str:
        if len(self.target_names) != 1:
            raise invalid("task.target", list(self.target_names), problem=problem, fix=fix)
        return self.target_names[0]

    def _example_weights(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Returns the sample weights, float32 (B,), or None if the config names no array of them."""
        if self._example_weight is None:
            return None
        return as_vector(ops, ops.cast(batch[self._example_weight], "float32"))

    def _weighted(self, ops: Arrays, loss_b: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,) times its sample weight, if the config names an array of them."""
        weight_b = self._example_weights(ops, batch)
        return loss_b if weight_b is None else loss_b * weight_b


def as_vector(ops: Arrays, x: Tensor) -> Tensor:
    """Returns an array (B,) or (B, 1) as (B,)."""
    if len(x.shape) == 1:
        return x
    # A sum over one number, not an index: DTensor computes some indices of sharded arrays wrongly.
    return ops.sum(x, axis=-1)


def is_real(ops: Arrays, batch: Mapping[str, Tensor], rank: int = 1) -> Tensor:
    """Returns bool (B, 1, ...) of a rank, False for padding."""
    real = ops.greater(batch[WEIGHT], 0.0)
    for _ in range(rank - 1):
        real = ops.expand_dims(real, -1)
    return real


def counted(ops: Arrays, batch: Mapping[str, Tensor], values: Tensor, axis: Sequence[int]) -> Tensor:
    """Returns float32 sums over the examples and perhaps other dims, without padding.

    Args:
      values: (B, ...), bool or numbers.
    """
    values = ops.cast(values, "float32")
    # Selected, not multiplied by the weight: the model's outputs for padding may be NaN, and NaN * 0 is NaN.
    without_padding = ops.where(is_real(ops, batch, len(values.shape)), values, ops.zeros_like(values))
    return ops.sum(without_padding, axis=tuple(axis))


def as_counts(totals: Array) -> Array:
    """Returns sums of ones and zeros as int64."""
    return np.rint(totals).astype(np.int64)


def read_columns(source: DataSource, names: Sequence[str], count: int | None = None) -> dict[str, Array]:
    """Returns whole arrays of a split, in its order.

    Args:
      count: number of examples, from the first; None: all.
    """
    size = source.size if count is None else min(count, source.size)
    columns = {name: column(source, name) for name in names}
    whole = {name: np.asarray(array[:size]) for name, array in columns.items() if array is not None}
    if len(whole) == len(columns):
        return whole
    # The empty arrays give the shape and dtype of a split without examples.
    blocks = {name: [np.zeros((0, *source.specs[name].shape), source.specs[name].dtype)] for name in names}
    for start in range(0, size, _BLOCK):
        block = source.read(np.arange(start, min(start + _BLOCK, size)))
        for name in names:
            blocks[name].append(block[name])
    return {name: np.concatenate(arrays) for name, arrays in blocks.items()}


def columns(ops: Arrays, batch: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Returns float32 (B, K) of K arrays (B,) or (B, 1), or (B, ...) of one array that has more dims."""
    arrays = []
    for name in names:
        array = ops.cast(batch[name], "float32")
        if len(array.shape) == 1:
            array = ops.expand_dims(array, -1)
        arrays.append(array)
    if len(arrays) == 1:
        return arrays[0]
    return ops.concatenate(arrays, axis=1)


def required_train_split(key: str, value: object, train: DataSource | None) -> DataSource:
    """Returns the train split, from which the value of a key is computed.

    Raises:
      ConfigError: there is none.
    """
    if train is None:
        raise invalid(
            key,
            value,
            problem="is computed from the train split, which is not loaded here",
            fix="remove it",
        )
    return train
