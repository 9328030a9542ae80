"""The state of a DTensor engine on its devices between two calls, and its traced update by a step's gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.config.schema import OptimizerConfig
from runner.data.base import Array
from runner.engine.dtensor import packed
from runner.engine.dtensor.arrays import pack_part, zeros
from runner.engine.dtensor.variable_reads import read_stored, read_value
from runner.engine.mappings import map_values, subset
from runner.engine.optim.norms import clip
from runner.engine.optim.rules import Rule, make_rule
from runner.engine.optim.schedules import learning_rate
from runner.layout.paths import slot_path

Variables = Mapping[str, dtensor.DVariable]


@dataclass(frozen=True)
class State:
    """The model's variables and the slots by path, and the paths of the trained ones, in the model's order."""

    variables: Variables
    trainable: Sequence[str]
    slots: Variables

    @property
    def saved(self) -> dict[str, dtensor.DVariable]:
        """Returns the variables of a checkpoint, by path."""
        return {**self.variables, **self.slots}

    @property
    def trained(self) -> list[dtensor.DVariable]:
        """Returns the trained variables, in the model's order."""
        return [self.variables[path] for path in self.trainable]

    def assign(self, values: Mapping[str, Array]) -> None:
        """Sets variables and slots from whole arrays by path, see `runner.engine.base.part_of`."""
        saved = self.saved
        for path in values:
            variable = saved[path]
            variable.assign(pack_part(values, path, variable.dtype.as_numpy_dtype, variable.layout))


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


class Update:
    """The update of a config's optimizer."""

    def __init__(self, config: OptimizerConfig, total_steps: int, state: State, *, packs: bool) -> None:
        self._config = config
        self._total_steps = total_steps
        self._state = state
        self._rule = make_rule(config, tf)
        self.packs = packs

    def _packed(self) -> list[list[dtensor.DVariable]]:
        """Returns the variables in each vector: the weights, then those of each slot."""
        state = self._state
        kinds = [state.trained]
        for slot in self._rule.slots:
            kinds.append([state.slots[slot_path(slot, path)] for path in state.trainable])
        return kinds

    def packed_state(self) -> list[tf.Tensor]:
        """Returns the vectors (N,) that a call's loop carries; none unless it packs."""
        if not self.packs:
            return []
        return [packed.pack(list(map(read_value, variables))) for variables in self._packed()]

    def write_state(self, vectors: Sequence[tf.Tensor]) -> None:
        """Writes the vectors of `packed_state` after a call's last step."""
        if not self.packs:
            return
        for variables, vector in zip(self._packed(), vectors, strict=True):
            for variable, value in zip(variables, packed.unpack(vector, variables), strict=True):
                variable.assign(value)

    def apply_packed(
        self, gradient: tf.Tensor, done: tf.Tensor, factor: tf.Tensor, before: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, ...]:
        """Updates all weights by one application of the rule, which is elementwise, to vectors (N,).

        Returns the new vectors in the order of `packed_state`.
        """
        gradients = [gradient]
        if self._config.clip.norm is not None:
            # Each gradient is clipped by its own norm.
            gradients = packed.unpack(gradient, self._state.trained)
        clipped = clip(self._config.clip, gradients, tf)
        gradient = clipped[0]
        if self._config.clip.norm is not None:
            gradient = packed.pack(clipped)
        old_weight, *old_slots = before
        slots = dict(zip(self._rule.slots, old_slots, strict=True))
        weight, new_slots = self._rule.update(gradient, old_weight, slots, self._rate(done, factor), done + 1.0)
        return weight, *subset(new_slots, self._rule.slots).values()

    def apply(self, gradients: Sequence[tf.Tensor], done: tf.Tensor, factor: tf.Tensor) -> None:
        """Reads every variable, then computes, then writes.

        The order matters: DTensor's all-reduce combiner does not keep that of reads and writes of one variable.
        """
        state = self._state
        rate = self._rate(done, factor)
        step = done + 1.0
        clipped = clip(self._config.clip, list(gradients), tf)
        assignments: list[tuple[dtensor.DVariable, tf.Tensor]] = []
        for path, gradient in zip(state.trainable, clipped, strict=True):
            variable = state.variables[path]
            slots = {slot: state.slots[slot_path(slot, path)] for slot in self._rule.slots}
            old_slots = map_values(read_value, slots)
            weight, new_slots = self._rule.update(gradient, read_stored(variable), old_slots, rate, step)
            if self._config.reread_slots:
                weight = self._reread(variable, slots, new_slots, rate, step)
                # They are assigned already.
                new_slots = {}
            assignments.append((variable, weight))
            for name, new_slot in new_slots.items():
                assignments.append((slots[name], new_slot))
        for target, value in assignments:
            target.assign(value)

    def _rate(self, done: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return learning_rate(self._config, done, self._total_steps, tf) * factor

    def _reread(
        self,
        variable: dtensor.DVariable,
        slots: Mapping[str, dtensor.DVariable],
        new_slots: Mapping[str, tf.Tensor],
        rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Tensor:
        """Assigns the slots and computes the weight from what is read back, as tf_keras's optimizers do.

        The result is wrong under the all-reduce combiner; it is what `optimizer.reread_slots` asks for.
        """
        assert self._rule.apply is not None
        for name, slot in slots.items():
            slot.assign(new_slots[name])
        return self._rule.apply(read_stored(variable), map_values(read_value, slots), rate, step)
