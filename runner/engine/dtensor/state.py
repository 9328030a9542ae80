"""What a DTensor engine holds on its devices between two calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.data.base import Array
from runner.engine.dtensor.arrays import pack_part, zeros
from runner.engine.dtensor.variable_reads import read_stored
from runner.model.contract import Constraint
from runner.optim.paths import ema_path, slot_path
from runner.optim.rules import Rule

Variables = Mapping[str, dtensor.DVariable]


@dataclass(frozen=True)
class State:
    """The model's variables and what the optimizer keeps beside them.

    Attributes:
      variables: by canonical path, in the model's order.
      trainable: paths of those that are trained.
      slots: of the trainable variables, by `runner.optim.paths`; their averages too, where the run keeps them.
      grad_accum: path to the sum of the gradients of a step's micro-batches so far; empty where a step has one.
      constraints: path to what a trainable variable is put through after each update, where it has such.
    """

    variables: Variables
    trainable: Sequence[str]
    slots: Variables
    grad_accum: Variables
    constraints: Mapping[str, Constraint]

    @property
    def saved(self) -> dict[str, dtensor.DVariable]:
        """Returns what a checkpoint holds, by path."""
        return {**self.variables, **self.slots}

    @property
    def non_trainable(self) -> dict[str, dtensor.DVariable]:
        """Returns variables that no gradient changes, as moving statistics."""
        return {path: variable for path, variable in self.variables.items() if path not in set(self.trainable)}

    def assign(self, values: Mapping[str, Array]) -> None:
        """Sets what a checkpoint holds from whole arrays by path, see `runner.engine.base.part_of`."""
        saved = self.saved
        for path in values:
            variable = saved[path]
            variable.assign(pack_part(values, path, variable.dtype.as_numpy_dtype, variable.layout))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Puts the averages of the weights, where there are such, into the variables while the context lasts."""
        averages = {path: self.slots[ema_path(path)] for path in self.trainable if ema_path(path) in self.slots}
        with _put_back([self.variables[path] for path in averages]):
            for path, average in averages.items():
                self.variables[path].assign(average.read_value())
            yield

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Puts the model's variables back as they were, when the context ends."""
        with _put_back(self.variables.values()):
            yield


@contextmanager
def _put_back(variables: Iterable[dtensor.DVariable]) -> Iterator[None]:
    """Puts variables back as they were, when the context ends."""
    before = [(variable, read_stored(variable)) for variable in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def make_state(
    variables: Variables,
    trainable_variables: Sequence[tf.Variable],
    rule: Rule,
    constraints: Mapping[str, Constraint],
    *,
    averages: bool,
    accumulates: bool,
) -> State:
    """Returns a state whose slots are zeros.

    Args:
      variables: by canonical path.
      trainable_variables: the model's.
      rule: the optimizer's, which names the slots.
      constraints: by path, of any of the variables.
      averages: moving averages of the weights are kept.
      accumulates: a step sums the gradients of several micro-batches.
    """
    ids = {id(variable) for variable in trainable_variables}
    trainable = [path for path, variable in variables.items() if id(variable) in ids]
    slots = {slot_path(slot, path): zeros(variables[path]) for path in trainable for slot in rule.slots}
    if averages:
        slots |= {ema_path(path): zeros(variables[path]) for path in trainable}
    grad_accum = {path: zeros(variables[path]) for path in trainable} if accumulates else {}
    return State(variables, trainable, slots, grad_accum, {p: constraints[p] for p in trainable if p in constraints})
