"""What tasks have in common that predict some arrays of a dataset from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.arrays import Arrays
from runner.config.schema_task import TaskConfig
from runner.data.base import TARGETS, WEIGHT, Array, ArraySpec, DataSource, column
from runner.errors import did_you_mean, invalid
from runner.task.base import LOSS, Task, Tensor
from runner.task.metrics import MINIMIZE

_BLOCK = 256  # examples that are read at a time


@dataclass(frozen=True)
class Roles:
    """Which arrays of a dataset are what, by name.

    Attributes:
      inputs: what the model takes.
      target: what is to be predicted.
      example_weight: what each example's loss is multiplied by; None: nothing.
    """

    inputs: tuple[str, ...]
    target: tuple[str, ...]
    example_weight: str | None

    @property
    def all(self) -> tuple[str, ...]:
        """Returns all names, each once."""
        weight = () if self.example_weight is None else (self.example_weight,)
        return tuple(dict.fromkeys((*self.inputs, *self.target, *weight)))


def roles(config: TaskConfig, arrays: Mapping[str, ArraySpec], *, needs_target: bool = True) -> Roles:
    """Returns the roles of a dataset's arrays.

    Args:
      config: the task's.
      arrays: specs by name.
      needs_target: refuses a dataset of which none is named.

    Raises:
      ConfigError: names an array that the dataset has not, and those that it has.
    """
    target = tuple(config.target) or tuple([name for name in TARGETS if name in arrays][:1])
    for key, names in (
        ("target", target),
        ("inputs", config.inputs or ()),
        ("example_weight", [config.example_weight]),
    ):
        for name in names:
            if name is not None and name not in arrays:
                raise invalid(
                    f"task.{key}", name, problem=_has(arrays), fix=did_you_mean(name, arrays, "name one of these")
                )
    if needs_target and not target:
        first = next(iter(arrays), "price")
        raise invalid(
            "task.target",
            None,
            problem=f"{_has(arrays)}, of which none is named {', '.join(TARGETS[:-1])} or {TARGETS[-1]}",
            fix=f"name what is to be predicted, as task.target={first}",
        )
    taken = {*target, config.example_weight}
    inputs = tuple(name for name in arrays if name not in taken) if config.inputs is None else tuple(config.inputs)
    if not inputs:
        raise invalid(
            "task.inputs",
            config.inputs,
            problem=f"at least one array; {_has(arrays)}",
            fix="name one, or leave task.inputs out to take all that is not the target",
        )
    if config.example_weight is not None:
        shape = arrays[config.example_weight].shape
        if shape not in ((), (1,)):
            raise invalid(
                "task.example_weight",
                config.example_weight,
                problem=f"an array of one number an example, this one has shape {list(shape)}",
                fix="name another array, or leave it out",
            )
    return Roles(inputs, target, config.example_weight)


def _has(arrays: Mapping[str, ArraySpec]) -> str:
    return f"the dataset has {', '.join(arrays)}"


class Supervised(Task):
    """A task with a target, the inputs that it is predicted from, and perhaps a weight of each example."""

    def __init__(self, found: Roles, arrays: Mapping[str, ArraySpec], metrics: Mapping[str, str]) -> None:
        """Takes what is the same for all.

        Args:
          found: roles of the arrays.
          arrays: specs of the dataset's arrays.
          metrics: the task's own, each with its better direction.
        """
        self.arrays = {name: arrays[name] for name in found.all}
        self.input_names = found.inputs
        self.target_names = found.target
        self.directions = {LOSS: MINIMIZE, **metrics}
        self.constants: Mapping[str, Sequence[float]] = {}
        self._example_weight = found.example_weight

    def _weighted(self, ops: Arrays, loss_b: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,) times its weight, where the config names one."""
        if self._example_weight is None:
            return loss_b
        return loss_b * as_vector(ops, ops.cast(batch[self._example_weight], "float32"))


def as_vector(ops: Arrays, x: Tensor) -> Tensor:
    """Returns (B,) of (B,) or (B, 1)."""
    return x if len(x.shape) == 1 else ops.sum(x, axis=-1)  # no index: DTensor gets some of them wrong


def is_real(ops: Arrays, batch: Mapping[str, Tensor], rank: int = 1) -> Tensor:
    """Returns bool (B, 1, ...) of that rank, False for padding."""
    real = ops.greater(batch[WEIGHT], 0.0)
    for _ in range(rank - 1):
        real = ops.expand_dims(real, -1)
    return real


def counted(ops: Arrays, batch: Mapping[str, Tensor], values: Tensor, axis: Sequence[int]) -> Tensor:
    """Returns float32 sums over the examples and perhaps other dims, padding left out whatever it holds.

    Args:
      ops: the engine's.
      batch: that the values are of.
      values: (B, ...), bool or numbers.
      axis: dims that are summed over.
    """
    values = ops.cast(values, "float32")
    chosen = ops.where(is_real(ops, batch, len(values.shape)), values, ops.zeros_like(values))
    return ops.sum(chosen, axis=tuple(axis))


def read_columns(source: DataSource, names: Sequence[str], count: int | None = None) -> dict[str, Array]:
    """Returns whole arrays of a split, in its order.

    What the source has whole is taken so; else it is read block by block.

    Args:
      source: the split.
      names: of its arrays.
      count: of the first so many examples; None: all.
    """
    size = source.size if count is None else min(count, source.size)
    whole = {name: held for name in names if (held := column(source, name)) is not None}
    if len(whole) == len(names):
        return {name: np.asarray(held[:size]) for name, held in whole.items()}
    blocks = [source.read(np.arange(at, min(at + _BLOCK, size))) for at in range(0, size, _BLOCK)]
    empty = {name: np.zeros((0, *source.specs[name].shape), source.specs[name].dtype) for name in names}
    return {name: np.concatenate([empty[name], *(block[name] for block in blocks)]) for name in names}


def needed(key: str, value: object, train: DataSource | None) -> DataSource:
    """Returns the train split that a key's value is computed from.

    Raises:
      ConfigError: there is none.
    """
    if train is None:
        raise invalid(key, value, problem="it is computed from the train split, which is not at hand", fix="name it")
    return train
