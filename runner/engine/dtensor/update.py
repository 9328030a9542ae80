"""The traced update of a step: gradients in; weights, slots and averages out, each by itself or all packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.config.schema import RunConfig
from runner.engine.dtensor import packed
from runner.engine.dtensor.packing import Packing
from runner.engine.dtensor.state import State
from runner.engine.dtensor.variable_reads import read_stored
from runner.optim import rules
from runner.optim.clipping import clip
from runner.optim.paths import ema_path, slot_path
from runner.optim.schedules import learning_rate


@dataclass(frozen=True)
class Position:
    """Where a round of a call's loop stands; float32 scalars.

    Attributes:
      done: steps done before.
      microstep: micro-batches done before, which dropout masks depend on.
      index: of the micro-batch in its step; None where a step has one.
    """

    done: tf.Tensor
    microstep: tf.Tensor
    index: tf.Tensor | None = None


class Update:
    """An optimizer's update, as a config names it."""

    def __init__(self, config: RunConfig, total_steps: int, state: State) -> None:
        """Takes what it is traced for.

        Args:
          config: a checked config.
          total_steps: of the whole run, for schedules that end with it.
          state: what is updated.
        """
        self._config = config.optimizer
        self._total_steps = total_steps
        self._state = state
        self._rule = rules.make_rule(config.optimizer, tf)
        self._decay = config.optimizer.ema.decay
        self._microbatches = config.trainer.accumulate_steps

    def apply(self, gradients: Sequence[tf.Tensor], at: Position, factor: tf.Tensor) -> None:
        """Reads every variable, then computes, then writes; slots and weights change with a step's last micro-batch.

        Args:
          gradients: of the trainable variables.
          at: where in the run.
          factor: what the schedule's learning rate is multiplied by.
        """
        state = self._state
        rate = self._rate(at.done, factor)
        writes = [] if at.index is None else self._accumulated(gradients, at.index)
        gradients = clip(self._config.clip, [value for _, value in writes] or list(gradients), tf)
        for path, gradient in zip(state.trainable, gradients, strict=True):
            variable = state.variables[path]
            slots = {slot: state.slots[slot_path(slot, path)] for slot in self._rule.slots}
            with tf.name_scope(path.replace("/", ".")):
                old = read_stored(variable)
                values = {name: slot.read_value() for name, slot in slots.items()}
                weight, new = self._rule.update(gradient, old, values, rate, at.done + 1.0)
            if self._config.reread_slots:
                weight = self._reread(variable, slots, new, rate, at.done + 1.0)
                new = {}
            with tf.name_scope(path.replace("/", ".")):
                weight = self._constrained(path, weight, variable.layout)
            changes = [(variable, old, weight), *((slots[slot], values[slot], new[slot]) for slot in new)]
            if self._decay is not None:
                ema = state.slots[ema_path(path)]
                before = ema.read_value()
                changes.append((ema, before, rules.average(self._decay, before, weight, at.done, tf)))
            writes += [(target, self._at_last(at.index, value, before)) for target, before, value in changes]
        for target, value in writes:
            target.assign(value)

    def apply_packed(
        self, packing: Packing, gradient: tf.Tensor, done: tf.Tensor, factor: tf.Tensor, vectors: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, ...]:
        """Returns the new vectors (N,) of weights, slots, averages. The rules go by elements: one serves them all.

        Args:
          packing: where each variable lies in a vector.
          gradient: (N,).
          done: steps done before.
          factor: what the schedule's learning rate is multiplied by.
          vectors: as `packed_variables` lists them.
        """
        if self._config.clip.norm is not None:  # of each gradient by itself
            gradient = packed.pack(clip(self._config.clip, packed.unpack(packing, gradient), tf))
        else:
            (gradient,) = clip(self._config.clip, [gradient], tf)
        rate = self._rate(done, factor)
        old, *others = vectors
        slots = dict(zip(self._rule.slots, others, strict=False))
        weight, new = self._rule.update(gradient, old, slots, rate, done + 1.0)
        weight = self._constrained_packed(packing, weight)
        averages = [] if self._decay is None else [rules.average(self._decay, others[-1], weight, done, tf)]
        return weight, *(new[slot] for slot in self._rule.slots), *averages

    def packed_variables(self, packing: Packing) -> list[list[dtensor.DVariable]]:
        """Returns the variables behind each packed vector: the weights, slot by slot, the weights' averages."""
        state = self._state
        weights = [state.variables[path] for path in packing.paths]
        slots = [[state.slots[slot_path(slot, path)] for path in packing.paths] for slot in self._rule.slots]
        averages = [] if self._decay is None else [[state.slots[ema_path(path)] for path in packing.paths]]
        return [weights, *slots, *averages]

    def _constrained(self, path: str, weight: tf.Tensor, layout: dtensor.Layout | None = None) -> tf.Tensor:
        """Returns a new weight as its constraint has it: computed of the whole weight, whose norm it may take.

        Args:
          path: canonical.
          weight: after the optimizer's update.
          layout: in which it is stored; None: whole.
        """
        constraint = self._state.constraints.get(path)
        if constraint is None:
            return weight
        if layout is None or set(layout.sharding_specs) <= {dtensor.UNSHARDED}:
            return tf.cast(constraint(weight), weight.dtype)
        whole = dtensor.relayout(weight, dtensor.Layout.replicated(layout.mesh, layout.rank))
        return dtensor.relayout(tf.cast(constraint(whole), weight.dtype), layout)

    def _constrained_packed(self, packing: Packing, vector: tf.Tensor) -> tf.Tensor:
        """Returns the vector (N,) of the weights, each as its constraint has it."""
        if not self._state.constraints:
            return vector
        weights = zip(packing.paths, packed.unpack(packing, vector), strict=True)
        return packed.pack([self._constrained(path, weight) for path, weight in weights])

    def _rate(self, done: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return learning_rate(self._config, done, self._total_steps, tf) * factor

    def _accumulated(
        self, gradients: Sequence[tf.Tensor], index: tf.Tensor
    ) -> list[tuple[dtensor.DVariable, tf.Tensor]]:
        """Returns each sum's variable and its new value; the first micro-batch of a step begins it again."""
        sums = [self._state.grad_accum[path] for path in self._state.trainable]
        before = [each.read_value() for each in sums]
        begun = [_chosen(index > 0.0, value, tf.zeros_like(value)) for value in before]
        return [(each, old + new) for each, old, new in zip(sums, begun, gradients, strict=True)]

    def _at_last(self, index: tf.Tensor | None, value: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
        """Returns the new value where all micro-batches of a step are summed, else the one before."""
        return value if index is None else _chosen(index > self._microbatches - 1.5, value, before)

    def _reread(
        self,
        variable: dtensor.DVariable,
        slots: Mapping[str, dtensor.DVariable],
        new: Mapping[str, tf.Tensor],
        rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Tensor:
        """Assigns the slots and computes the weight from what is read back: wrong under the all-reduce combiner."""
        assert self._rule.apply is not None
        for name, slot in slots.items():
            slot.assign(new[name])
        return self._rule.apply(
            read_stored(variable), {name: slot.read_value() for name, slot in slots.items()}, rate, step
        )


def _chosen(condition: tf.Tensor, value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns one of two tensors by a scalar; DTensor crashes on a condition of another rank than theirs."""
    if not value.shape.rank:  # of rank 0 too
        return tf.reshape(_chosen(condition, tf.reshape(value, [1]), tf.reshape(other, [1])), [])
    return tf.where(tf.reshape(condition, [1] * value.shape.rank), value, other)
