"""The state of a DTensor engine on its devices between two calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.data.base import Array
from runner.engine.dtensor.arrays import pack_part, zeros
from runner.engine.dtensor.variable_reads import read_stored
from runner.engine.optim.base import Rule
from runner.layout.paths import slot_path

Variables = Mapping[str, dtensor.DVariable]


@dataclass(frozen=True)
class State:
    """The model's variables and the optimizer state.

    Attributes:
      variables: by canonical path, in the model's order.
      trainable: paths of those that are trained.
      slots: the slots of the trainable variables, by `runner.layout.paths`.
    """

    variables: Variables
    trainable: Sequence[str]
    slots: Variables

    @property
    def saved(self) -> dict[str, dtensor.DVariable]:
        """Returns the variables of a checkpoint, by path."""
        return {**self.variables, **self.slots}

    def assign(self, values: Mapping[str, Array]) -> None:
        """Sets variables and slots from whole arrays by path, see `runner.engine.base.part_of`."""
        saved = self.saved
        for path in values:
            variable = saved[path]
            variable.assign(pack_part(values, path, variable.dtype.as_numpy_dtype, variable.layout))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restores the model's variables at the end of the context."""
        before = {path: read_stored(variable) for path, variable in self.variables.items()}
        try:
            yield
        finally:
            for path, value in before.items():
                self.variables[path].assign(value)


def make_state(variables: Variables, trainable_variables: Sequence[tf.Variable], rule: Rule) -> State:
    """Returns a state whose slots have their initial values."""
    trainable_ids = set(map(id, trainable_variables))
    # In the order of the variables, which gradients and slots share.
    trainable = []
    for path, variable in variables.items():
        if id(variable) in trainable_ids:
            trainable.append(path)
    slots = {}
    for path in trainable:
        for slot in rule.slots:
            slots[slot_path(slot, path)] = zeros(variables[path])
    return State(variables, trainable, slots)
