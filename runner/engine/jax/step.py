"""Pure functions of the engine `jax`: a step, a call of several rounds in one loop, gradients, an evaluated batch.

Shapes: K rounds per call, each over one micro-batch; B examples of a micro-batch, N examples of a split.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from runner import arrays
from runner.config.schema import OptimizerConfig, TrainerConfig
from runner.data.base import ROW, WEIGHT, Array, ArraySpec
from runner.engine.jax import private
from runner.engine.jax.layers.chunked_loss import bytes_of_chunk, chunked
from runner.engine.jax.layers.fused_attention import fused_where_alike
from runner.engine.jax.layers.gradients import exact_gradients
from runner.engine.jax.partitioning import Partitioning
from runner.engine.jax.precision import as_float32, rounded, rounded_like
from runner.engine.jax.randomness import Randomness
from runner.engine.jax.state import State
from runner.engine.jax.updates import Before, UpdateRule
from runner.engine.optim import norms, rules
from runner.engine.optim.norms import clip
from runner.engine.optim.schedules import learning_rate
from runner.task.base import LOSS, Task

Arrays = dict[str, jax.Array]
# `loss` and the task's metrics of each example, by name.
Sums = dict[str, jax.Array]
StateT = TypeVar("StateT", bound=Any)
# Trainable and other variables.
Weights = tuple[list[jax.Array], list[jax.Array]]
# Each example's loss (B,), outputs, regularization (), new non-trainable variables.
Aux = tuple[jax.Array, jax.Array, jax.Array, list[jax.Array]]
# Results of an evaluation, see `Step.evaluated`.
Evaluated = tuple[jax.Array, Arrays, jax.Array | Arrays, jax.Array | None]

# Places in a call's numbers, see `call_numbers`.
_ROUNDS = 0
_FIRST_STEP = 1
_RATE_FACTOR = 2
_COUNTS = 3


def call_numbers(rounds: int, first_step: int, rate_factor: float, counts: Array) -> Array:
    """Returns the numbers that a call's programs take beside arrays: int32 (3 + K,).

    One array for all of them, as each array is a transfer to every device. The floats are in it as their bits: int32
    would round them, and float32 can't hold a number of steps above 2**24. `counts` (K,) is what the examples of each
    round's whole step count for.
    """
    integers = np.asarray([rounds, first_step], np.int32)
    floats = np.concatenate([[rate_factor], counts]).astype(np.float32)
    return np.concatenate([integers, floats.view(np.int32)])


def first_step(numbers: jax.Array) -> jax.Array:
    """Returns int32 (), the steps done before a call, from its numbers."""
    return numbers[_FIRST_STEP]


def _float_at(numbers: jax.Array, index: int | jax.Array) -> jax.Array:
    """Returns a float32 number that `call_numbers` put in as its bits."""
    return lax.bitcast_convert_type(numbers[index], jnp.float32)


def batch_shapes(arrays: Mapping[str, ArraySpec], size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes (B, ...) of a batch of so many examples, in JAX's dtypes."""
    shapes = {}
    for name, spec in arrays.items():
        dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
        shapes[name] = jax.ShapeDtypeStruct((size, *spec.shape), dtype)
    return shapes


def only_batch(arrays: Arrays) -> Arrays:
    """Returns the batch (B, ...) of arrays (1, B, ...)."""
    return {name: array[0] for name, array in arrays.items()}


class Rounds(ABC, Generic[StateT]):
    """Base class of a step's functions; all are traced, none holds an array."""

    def __init__(self, partitioning: Partitioning, microbatches: int, metrics: Sequence[str]) -> None:
        self._partitioning = partitioning
        self._microbatches = microbatches
        self._metrics = tuple(metrics)
        # Names of the norms of gradients that a step returns after the regularization.
        self._norms: Sequence[str] = ()
        # A context for what calls layers.
        self._attention = partial(
            fused_where_alike,
            partitioning.arrays[WEIGHT],
            splits_tokens=partitioning.tokens.sequence > 1,
            heads_axis=partitioning.heads_axis,
        )

    @abstractmethod
    def step(
        self, state: StateT, split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[StateT, Sums, jax.Array]:
        """Returns one round's new state, losses and metrics (B,), and regularization.

        The arguments are those of `many`, and int32 (), the round's number in the call.
        """

    def many(
        self, state: StateT, split: Arrays | None, arrays: Arrays, numbers: jax.Array
    ) -> tuple[StateT, Sums, jax.Array]:
        """Runs a call's rounds as one program. Their number is an input, so that it needs no compilation of its own.

        Args:
          state: before.
          split: (N, ...) by name, the split's arrays if the devices keep them; None: a call has its examples.
          arrays: (K, B, ...) by name; with a kept split, `row` int32 (K, B) in their place. `weight` is among them.
          numbers: int32 (3 + K,), see `call_numbers`.

        Returns:
          The new state, losses and metrics (K, B) by name, and regularization (K,), 0 for rounds that were not done.
            With norms of gradients, these follow the regularization, (K, 1 + norms).
        """

        def body(index: jax.Array, carried: tuple[StateT, Sums, jax.Array]) -> tuple[StateT, Sums, jax.Array]:
            state, *rows = carried
            state, *new_row = self.step(state, split, arrays, numbers, index)
            sums, regularization = jax.tree.map(
                lambda row, new: lax.dynamic_update_index_in_dim(row, new, index, 0), tuple(rows), tuple(new_row)
            )
            return state, sums, regularization

        zeros_kb = jnp.zeros(arrays[WEIGHT].shape, jnp.float32)
        zeros_kb = lax.with_sharding_constraint(zeros_kb, self._partitioning.sums)
        sums = dict.fromkeys((LOSS, *self._metrics), zeros_kb)
        regularization_k = jnp.zeros(zeros_kb.shape[:1], jnp.float32)
        if self._norms:
            regularization_k = jnp.zeros((len(regularization_k), 1 + len(self._norms)), jnp.float32)
        start = (state, sums, regularization_k)
        results: tuple[StateT, Sums, jax.Array] = lax.fori_loop(0, numbers[_ROUNDS], body, start)
        return results

    def _batch(
        self, split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[Arrays, jax.Array, jax.Array]:
        """Returns a round's arrays (B, ...), what its step's examples count for, and the micro-batches done before."""
        batch = {}
        for name, array in arrays.items():
            batch[name] = self._constrain(name, lax.dynamic_index_in_dim(array, index, 0, keepdims=False))
        if split is not None:
            rows_b = batch.pop(ROW)
            for name, examples in split.items():
                # All rows are in range. By default JAX compares each with the range and fills what is out of it.
                batch[name] = self._constrain(name, examples.at[rows_b].get(mode="clip"))
        count = _float_at(numbers, _COUNTS + index)
        return batch, count, numbers[_FIRST_STEP] * self._microbatches + index

    def _constrain(self, name: str, array: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(array, self._partitioning.arrays[name])


class Step(Rounds[State[jax.Array]]):
    """The functions of one model and config; all are traced, none holds an array."""

    def __init__(
        self,
        model: keras.Model,
        trainer: TrainerConfig,
        optimizer: OptimizerConfig,
        task: Task,
        *,
        total_steps: int,
        device: str,
        randomness: Randomness,
        partitioning: Partitioning,
        update_rule: UpdateRule,
    ) -> None:
        super().__init__(partitioning, trainer.accumulate_steps, task.step_metrics)
        self._model = model
        self._optimizer = optimizer
        self._task = task
        self._total_steps = total_steps
        self._random = randomness
        # Read once: the property walks the whole model.
        self._variables = model.trainable_variables
        self._update_rule = update_rule
        self._norms = norms.names(optimizer)
        ops = arrays.of(jnp)
        # Of the config's devices, which need not be those of this process.
        most_bytes = bytes_of_chunk(device)
        self.ops = replace(ops, head_losses=partial(chunked, ops, partitioning.tokens, most_bytes=most_bytes))
        # Keras's layers are traced once for all programs that use the gradients: it takes seconds for a deep model.
        self._differentiated = jax.jit(self._gradients_of_losses, inline=True)

    def losses(
        self,
        trainable: list[jax.Array],
        non_trainable: list[jax.Array],
        batch: Arrays,
        count: jax.Array,
        microstep: jax.Array,
    ) -> tuple[jax.Array, Aux]:
        """Returns the mean loss, each example's loss (B,), the outputs, regularization and the new weights.

        Of a step with several micro-batches the mean is one's share: their losses add up to the mean loss.

        Args:
          trainable: weights as the model uses them.
          non_trainable: the other weights.
          batch: arrays (B, ...) of a micro-batch by name.
          count: float32 (), what the examples of the whole step count for.
          microstep: int32 (), micro-batches done before.
        """
        others = self._random.insert(non_trainable, microstep)
        model_outputs, others, added = self._called(trainable, others, batch, training=True)
        outputs = jax.tree.map(private.as_float32, self._task.reduced(self.ops, model_outputs, batch))
        # Chosen and not multiplied by the weight: the loss of padding may be NaN, and 0 * NaN is NaN.
        loss_b = jnp.where(batch[WEIGHT] > 0, self._task.loss(self.ops, outputs, batch), 0.0)
        regularization = jnp.zeros((), jnp.float32) if added is None else added
        mean = jnp.sum(loss_b / count) + regularization / self._microbatches
        return mean, (loss_b, outputs, regularization, self._random.remove(others))

    def gradients(
        self, state: State[jax.Array], batch: Arrays, count: jax.Array, microstep: jax.Array
    ) -> tuple[list[jax.Array], Aux]:
        """Returns the gradients of the mean loss, float32, and the rest of `losses`."""
        weights = self.used_weights(state.trainable)
        gradients, aux = self._differentiated(weights, state.non_trainable, batch, count, microstep)
        return list(map(as_float32, gradients)), aux

    def used_weights(self, trainable: list[jax.Array]) -> list[jax.Array]:
        """Returns the trainable weights in the dtype in which the model uses them, see `runner.engine.jax.precision`.

        Each shard is rounded on its device, so that the rounded weights are gathered and not the float32 ones.
        """
        weights = []
        shardings = self._partitioning.state.trainable
        for value, variable, sharding in zip(trainable, self._variables, shardings, strict=True):
            if value.dtype != variable.dtype:
                value = lax.with_sharding_constraint(rounded(value, variable.dtype), sharding)
            weights.append(value)
        for index, sharding in self._partitioning.gathered.items():
            weights[index] = lax.with_sharding_constraint(weights[index], sharding)
        return weights

    def _gradients_of_losses(self, *arguments: object) -> tuple[list[jax.Array], Aux]:
        with exact_gradients(self._partitioning.spread_images):
            gradients: tuple[list[jax.Array], Aux] = jax.grad(self.losses, has_aux=True)(*arguments)
        return gradients

    def step(
        self, state: State[jax.Array], split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[State[jax.Array], Sums, jax.Array]:
        """Returns one round's new state, losses and metrics (B,), and regularization; see the base class."""
        batch, count, microstep = self._batch(split, arrays, numbers, index)
        gradients, (loss_b, outputs, regularization, weights) = self.gradients(state, batch, count, microstep)
        done = (first_step(numbers) + index // self._microbatches).astype(jnp.float32)
        # The scope's name tells the optimizer's collectives, see `runner.engine.jax.collectives`.
        with jax.named_scope("update"):
            new_state = self._update(
                state._replace(non_trainable=weights),
                gradients,
                done,
                index % self._microbatches,
                _float_at(numbers, _RATE_FACTOR),
            )
            if self._norms:
                # With several micro-batches, the new sums are those of the step so far.
                totals = new_state.grad_accum or gradients
                regularization = jnp.stack([regularization, norms.norm(totals, self.ops)])
        metrics = self._task.metrics(self.ops, outputs, batch)
        sums = {LOSS: loss_b}
        for name in self._metrics:
            sums[name] = metrics[name].astype(jnp.float32)
        placed: State[jax.Array] = lax.with_sharding_constraint(new_state, self._partitioning.state)
        return placed, sums, regularization

    def _update(
        self,
        state: State[jax.Array],
        gradients: list[jax.Array],
        done: jax.Array,
        microbatch: jax.Array,
        rate_factor: jax.Array,
    ) -> State[jax.Array]:
        """Returns the state after one round: updated after a step's last micro-batch, else with a larger sum.

        Its non-trainable weights are the new ones already; `done` steps and the `microbatch` of the step come before.
        """
        config = self._optimizer
        rate = learning_rate(config, done, self._total_steps, jnp) * rate_factor
        if self._microbatches > 1:
            # A step's first micro-batch begins its sums; what the step before left in them does not count.
            sums = [jnp.where(microbatch > 0, old, jnp.zeros_like(old)) for old in state.grad_accum]
            gradients = [old + new for old, new in zip(sums, gradients, strict=True)]
        clipped = clip(config.clip, gradients, jnp)
        old_slots = []
        for slot, values in zip(self._update_rule.slots, state.slots, strict=True):
            if slot.dtype is None:
                values = list(map(as_float32, values))
            old_slots.append(values)
        old_weights = list(map(as_float32, state.trainable))
        weights, new_slots = self._update_rule.apply(
            Before(clipped, old_weights, old_slots, rate, done, self._constrained)
        )
        trainable = list(map(rounded_like, weights, state.trainable))
        slots = []
        for new_values, old_values in zip(new_slots, state.slots, strict=True):
            slots.append(list(map(rounded_like, new_values, old_values)))
        ema = []
        if state.ema:
            for average, weight in zip(state.ema, trainable, strict=True):
                ema.append(rules.average(config.ema.decay or 0.0, average, as_float32(weight), done, jnp))
        updated = state._replace(trainable=trainable, slots=slots, ema=ema)
        if self._microbatches == 1:
            return updated
        is_last = microbatch == self._microbatches - 1
        chosen: State[jax.Array] = jax.tree.map(lambda new, old: jnp.where(is_last, new, old), updated, state)
        return chosen._replace(non_trainable=state.non_trainable, grad_accum=gradients)

    def _constrained(self, index: int, weight: jax.Array) -> jax.Array:
        """Returns a trainable variable's new value after its Keras constraint, called as `fit` calls it."""
        variable = self._variables[index]
        if variable.constraint is None:
            return weight
        with private.in_float32([variable]), keras.StatelessScope(state_mapping=[(variable, weight)]):
            constrained: jax.Array = keras.ops.convert_to_tensor(variable.constraint(variable), variable.dtype)
            return constrained

    def whole_gradients(
        self, state: State[jax.Array], split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Returns the gradients and the new non-trainable variables of one micro-batch of a call's first batch."""
        batch, count, microstep = self._batch(split, arrays, numbers, index)
        gradients, (*_, weights) = self.gradients(state, batch, count, microstep)
        return gradients, weights

    def evaluated(self, weights: Weights, arrays: Arrays) -> Evaluated:
        """Returns each example's loss (B,) of a batch, arrays (1, B, ...), totals, kept outputs, and the sum of
        layers' losses.
        """
        model_outputs, batch, added = self._model_outputs(weights, arrays)
        task = self._task.without_class_weights()
        outputs = jax.tree.map(private.as_float32, task.reduced(self.ops, model_outputs, batch))
        loss_b = task.loss(self.ops, outputs, batch)
        totals = task.totals(self.ops, outputs, batch)
        return loss_b, totals, outputs if task.keeps_outputs or task.reads_batch else {}, added

    def next_logits(self, weights: Weights, arrays: Arrays) -> jax.Array:
        """Returns the task's logits (B, V) of a batch, arrays (1, B, ...)."""
        model_outputs, batch, _ = self._model_outputs(weights, arrays)
        logits_bv: jax.Array = self._task.next_logits(self.ops, model_outputs, batch)
        return logits_bv

    def _model_outputs(self, weights: Weights, arrays: Arrays) -> tuple[jax.Array, Arrays, jax.Array | None]:
        """Returns the model's outputs for a batch (1, B, ...), without dropout, the batch (B, ...), and the layers'
        losses.
        """
        trainable, non_trainable = weights
        trainable = self.used_weights(trainable)
        batch = only_batch(arrays)
        others = self._random.insert(non_trainable, 0)
        outputs, _, added = self._called(trainable, others, batch, training=False)
        return outputs, batch, added

    def _called(
        self, trainable: list[jax.Array], others: list[jax.Array], batch: Arrays, *, training: bool
    ) -> tuple[jax.Array, list[jax.Array], jax.Array | None]:
        """Returns the model's outputs, the new other variables, and the sum of the losses that layers add, if any."""
        private.forget_added_losses(self._model)
        options = private.training_argument(self._model, training=training)
        inputs = self._task.inputs(self.ops, batch)
        with self._attention():
            outputs, new, losses = self._model.stateless_call(trainable, others, inputs, return_losses=True, **options)
        added = None
        if losses:
            added = jnp.asarray(sum(jnp.sum(loss).astype(jnp.float32) for loss in losses))
        return outputs, new, added
