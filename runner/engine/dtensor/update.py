"""The traced update of a step, from gradients to weights, slots and EMA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner import arrays
from runner.config.schema import RunConfig
from runner.engine.dtensor.state import State
from runner.engine.dtensor.variable_reads import read_stored, read_value
from runner.engine.mappings import map_values
from runner.engine.optim import (
    groups,
    norms,
    rules,
)
from runner.engine.optim.clipping import clip
from runner.engine.optim.schedules import learning_rate
from runner.layout.paths import (
    ema_path,
    slot_path,
)


@dataclass(frozen=True)
class Position:
    """A round's position in the run; float32 scalars.

    Attributes:
      done: number of earlier steps.
      microstep: number of earlier microbatches, which dropout masks depend on.
      index: of the microbatch in its step; None if a step has one microbatch.
    """

    done: tf.Tensor
    microstep: tf.Tensor
    index: tf.Tensor | None = None


@dataclass(frozen=True)
class _Write:
    """An assignment that waits for the end of the step.

    Attributes:
      variable: to be assigned.
      before: its value at the step's begin.
      value: its new value.
    """

    variable: dtensor.DVariable
    before: tf.Tensor
    value: tf.Tensor


class Update:
    """The update of a config's optimizer."""

    def __init__(self, config: RunConfig, total_steps: int, state: State) -> None:
        """Stores what the update is traced for.

        Args:
          config: a checked config.
          total_steps: of the whole run, for schedules that end with it.
          state: what is updated.
        """
        self._config = config.optimizer
        self._total_steps = total_steps
        self._state = state
        self._settings = groups.settings(config.optimizer, state.trainable)
        self._grouped_rule = rules.GroupedRule(config.optimizer, self._settings, tf)
        self._rule = self._grouped_rule.rule
        self._decay = config.optimizer.ema.decay
        self._microbatches = config.trainer.accumulate_steps

    def apply(self, gradients: Sequence[tf.Tensor], at: Position, factor: tf.Tensor) -> list[tf.Tensor]:
        """Reads every variable, then computes, then writes.

        Slots and weights change with a step's last microbatch.

        The order matters: DTensor's all-reduce combiner does not keep that of reads and writes of one variable.

        Args:
          gradients: of the trainable variables.
          at: the position in the run.
          factor: factor on the schedule's learning rate.

        Returns:
          Norms of the gradients, see `runner.engine.optim.norms`.
        """
        state = self._state
        rate = self._rate(at.done, factor)
        step = at.done + 1.0
        assignments: list[tuple[dtensor.DVariable, tf.Tensor]] = []
        if at.index is None:
            gradients = list(gradients)
        else:
            assignments = self._accumulated(gradients, at.index)
            gradients = [total for _, total in assignments]
        xp = arrays.of(tf)
        gradients = groups.unfrozen(list(self._settings.values()), gradients, step, xp)
        gradient_norms = norms.values(self._config, state.trainable, gradients, xp)
        gradients = clip(self._config.clip, gradients, tf)
        for path, gradient in zip(state.trainable, gradients, strict=True):
            variable = state.variables[path]
            slots = {slot: state.slots[slot_path(slot, path)] for slot in self._rule.slots}
            old_weight = read_stored(variable)
            old_slots = map_values(read_value, slots)
            weight, new_slots = self._grouped_rule.update(path, gradient, old_weight, old_slots, rate, step)
            if self._config.reread_slots:
                weight = self._reread(variable, slots, new_slots, rate, step)
                # They are assigned already.
                new_slots = {}
            weight = self._constrained(path, weight, variable.layout)
            freeze_steps = self._settings[path].freeze_steps
            if freeze_steps:
                is_trained = step > float(freeze_steps)
                weight = _select(is_trained, weight, old_weight)
                for name, new_slot in new_slots.items():
                    new_slots[name] = _select(is_trained, new_slot, old_slots[name])
            writes = [_Write(variable, old_weight, weight)]
            for name, new_slot in new_slots.items():
                writes.append(_Write(slots[name], old_slots[name], new_slot))
            if self._decay is not None:
                ema = state.slots[ema_path(path)]
                old_ema = ema.read_value()
                writes.append(_Write(ema, old_ema, rules.average(self._decay, old_ema, weight, at.done, tf)))
            for write in writes:
                assignments.append((write.variable, self._at_last(at.index, write.value, write.before)))
        for target, value in assignments:
            target.assign(value)
        return gradient_norms

    def _constrained(self, path: str, weight: tf.Tensor, layout: dtensor.Layout) -> tf.Tensor:
        """Returns a new weight after its constraint.

        The constraint gets the whole weight, as it may compute its norm.

        Args:
          path: canonical.
          weight: after the optimizer's update.
          layout: in which it is stored.
        """
        constraint = self._state.constraints.get(path)
        if constraint is None:
            return weight
        if set(layout.sharding_specs) <= {dtensor.UNSHARDED}:
            return tf.cast(constraint(weight), weight.dtype)
        whole = dtensor.relayout(weight, dtensor.Layout.replicated(layout.mesh, layout.rank))
        return dtensor.relayout(tf.cast(constraint(whole), weight.dtype), layout)

    def _rate(self, done: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return learning_rate(self._config, done, self._total_steps, tf) * factor

    def _accumulated(
        self, gradients: Sequence[tf.Tensor], index: tf.Tensor
    ) -> list[tuple[dtensor.DVariable, tf.Tensor]]:
        """Returns each gradient sum's variable and its new value.

        The first microbatch of a step starts from 0.
        """
        sums = [self._state.grad_accum[path] for path in self._state.trainable]
        # As in `apply`, everything is read before anything is computed.
        before = list(map(read_value, sums))
        begun = [_select(index > 0.0, value, tf.zeros_like(value)) for value in before]
        return [(total, old + new) for total, old, new in zip(sums, begun, gradients, strict=True)]

    def _at_last(self, index: tf.Tensor | None, value: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
        """Returns the new value after the last microbatch of a step, else the one before."""
        if index is None:
            return value
        # Halfway between the last two indices, which are whole numbers in float32.
        is_last = index > self._microbatches - 1.5
        return _select(is_last, value, before)

    def _reread(
        self,
        variable: dtensor.DVariable,
        slots: Mapping[str, dtensor.DVariable],
        new_slots: Mapping[str, tf.Tensor],
        rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Tensor:
        """Assigns the slots and computes the weight from what is read back.

        The result is wrong under the all-reduce combiner.

        It reproduces tf_keras's optimizers, for `optimizer.reread_slots`.
        """
        assert self._rule.apply is not None
        for name, slot in slots.items():
            slot.assign(new_slots[name])
        return self._rule.apply(read_stored(variable), map_values(read_value, slots), rate, step)


def _select(condition: tf.Tensor, value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns one of two tensors by a scalar condition.

    DTensor crashes on a condition of another rank than the tensors', and on tensors of rank 0.
    """
    if not value.shape.rank:
        return tf.reshape(_select(condition, tf.reshape(value, [1]), tf.reshape(other, [1])), [])
    return tf.where(tf.reshape(condition, [1] * value.shape.rank), value, other)
