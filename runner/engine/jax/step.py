"""Pure functions of the engine `jax`: a step, a call of several steps, gradients, an evaluated batch.

Shapes: K rounds per call, each over one micro-batch; B examples of a micro-batch, N examples of a split.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import keras
from jax import lax

from runner import arrays
from runner.config.schema import OptimizerConfig, TrainerConfig
from runner.data.base import WEIGHT
from runner.engine.jax import private
from runner.engine.jax.layers.chunked_loss import bytes_of_chunk, chunked
from runner.engine.jax.layers.gradients import exact_gradients
from runner.engine.jax.partitioning import Partitioning
from runner.engine.jax.precision import as_float32, rounded, rounded_like
from runner.engine.jax.randomness import Randomness
from runner.engine.jax.rounds import Arrays, Rounds, Sums, first_step, only_batch, rate_factor
from runner.engine.jax.state import State
from runner.engine.jax.updates import Before, UpdateRule
from runner.engine.optim import norms, rules
from runner.engine.optim.norms import clip
from runner.engine.optim.schedules import learning_rate
from runner.task.base import LOSS, Task

# Trainable and other variables.
Weights = tuple[list[jax.Array], list[jax.Array]]
# Each example's loss (B,), outputs, regularization (), new non-trainable variables.
Aux = tuple[jax.Array, jax.Array, jax.Array, list[jax.Array]]
# Results of an evaluation, see `Step.evaluated`.
Evaluated = tuple[jax.Array, Arrays, jax.Array | Arrays, jax.Array | None]


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
        self._norms = norms.names(optimizer, list(update_rule.settings))
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
        outputs = _float32(self._task.reduced(self.ops, model_outputs, batch))
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
                rate_factor(numbers),
            )
            if self._norms:
                # With several micro-batches, the new sums are those of the step so far.
                totals = new_state.grad_accum or gradients
                regularization = jnp.stack([regularization, *self._gradient_norms(totals)])
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

    def _gradient_norms(self, gradients: list[jax.Array]) -> list[jax.Array]:
        paths = list(self._update_rule.settings)
        return norms.values(self._optimizer, paths, gradients, self.ops)

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
        outputs = _float32(task.reduced(self.ops, model_outputs, batch))
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


def _float32(outputs: jax.Array) -> jax.Array:
    converted: jax.Array = jax.tree.map(lambda output: output.astype(jnp.float32), outputs)
    return converted
