"""The pure functions of the engine `jax`: a step, a call of several steps, gradients, an evaluated batch.

Shapes: K rounds a call, each over one micro-batch; B its examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import NamedSharding

from runner.config.schema import RunConfig
from runner.data.base import ROW, WEIGHT
from runner.engine.jax import private
from runner.engine.jax.layers.batch_norm import Parts
from runner.engine.jax.layers.chunked_loss import WHOLE, TokenParts, chunked
from runner.engine.jax.layers.fused_attention import fused_where_alike
from runner.engine.jax.layers.kernel_gradient import Spread, exact_kernel_gradients
from runner.engine.jax.layers.rows import exact_row_gradients
from runner.engine.jax.precision import rounded, whole
from runner.engine.jax.randomness import Randomness
from runner.engine.jax.state import State
from runner.model import scope
from runner.optim import rules
from runner.optim.clipping import clip
from runner.optim.schedules import learning_rate
from runner.task import namespace
from runner.task.base import LOSS, Outputs, Task

# Where the micro-batches' example counts begin among a call's numbers: after rounds, steps done, the rate's factor.
COUNTS = 3

Arrays = dict[str, jax.Array]
Sums = dict[str, jax.Array]  # `loss` and the task's metrics of each example, by name
Weights = tuple[list[jax.Array], list[jax.Array]]  # trainable and other variables
Aux = tuple[jax.Array, jax.Array, jax.Array, list[jax.Array]]
Judged = tuple[jax.Array, Arrays]  # each row's loss, and the task's totals


@dataclass(frozen=True)
class Shardings:
    """How what a step computes is to lie.

    Attributes:
      state: of the step's state.
      arrays: of a micro-batch's arrays, of `row` and of `weight`, by name.
      sums: of numbers a call's examples, (K, B).
      gathered: of trainable variables that the step gathers before the model uses them, by their index.
      heads: axis that splits every attention's heads, of queries, keys and values; None: there is none.
    """

    state: State[NamedSharding]
    arrays: Mapping[str, NamedSharding]
    sums: NamedSharding
    gathered: Mapping[int, NamedSharding] = field(default_factory=dict)
    heads: str | None = None


class Step:
    """The functions of one model and config; all are traced, none holds an array."""

    def __init__(
        self,
        model: keras.Model,
        config: RunConfig,
        task: Task,
        total_steps: int,
        random: Randomness,
        shardings: Shardings,
        spread: Spread | None = None,
        parts: Parts | None = None,
        token_parts: TokenParts = WHOLE,
    ) -> None:
        """Takes what is the same for every step.

        Args:
          model: Keras 3 model.
          config: optimizer, schedule and clipping.
          task: loss and metrics.
          total_steps: of the whole training.
          random: the model's generators.
          shardings: of what it computes.
          spread: for `runner.engine.jax.layers.kernel_gradient.exact_kernel_gradients`.
          parts: how the mesh splits a batch's examples.
          token_parts: how it splits examples and their tokens.
        """
        self._model = model
        self._config = config
        self._task = task
        self._total_steps = total_steps
        self._random = random
        self._shardings = shardings
        self._microbatches = config.trainer.accumulate_steps
        self._spread = spread
        self._parts = parts
        self._variables = model.trainable_variables  # a walk of the whole model
        self._rule = rules.make_rule(config.optimizer, jnp)
        ops = namespace.of(jnp)
        self._ops = replace(ops, head_losses=partial(chunked, ops, token_parts))
        split = token_parts.sequence > 1
        self._attention = partial(
            fused_where_alike, shardings.arrays[WEIGHT], splits_tokens=split, heads_axis=shardings.heads
        )
        # Keras's layers are traced once for all the programs that use the gradients: it takes seconds of a deep model.
        self._differentiated = jax.jit(self._gradients_of_losses, inline=True)

    def losses(
        self,
        trainable: list[jax.Array],
        non_trainable: list[jax.Array],
        batch: Arrays,
        count: jax.Array,
        microstep: jax.Array,
    ) -> tuple[jax.Array, Aux]:
        """Returns the mean loss, with each example's loss (B,), the outputs, regularization and the new weights.

        Of a step of several micro-batches it is one's share: their losses add up to the mean loss.
        """
        full = self._random.insert(non_trainable, microstep)
        with scope.enter(scope.Scope(self._config.trainer.seed, microstep, parts=self._parts)), self._attention():
            given, full, added = self._model.stateless_call(
                trainable,
                full,
                self._task.inputs(self._ops, batch),
                return_losses=True,
                **private.training_argument(self._model, training=True),
            )
        outputs = _float32(self._task.reduced(self._ops, given, batch))
        # Chosen, not multiplied: what padding gives may be no number.
        loss_b = jnp.where(batch[WEIGHT] > 0, self._task.loss(self._ops, outputs, batch), 0.0)
        regularization = jnp.asarray(sum(jnp.sum(each).astype(jnp.float32) for each in added), jnp.float32)
        mean = jnp.sum(loss_b / count) + regularization / self._microbatches
        return mean, (loss_b, outputs, regularization, self._random.remove(full))

    def gradients(
        self, state: State[jax.Array], batch: Arrays, count: jax.Array, microstep: jax.Array
    ) -> tuple[list[jax.Array], Aux]:
        """Returns the gradients of the mean loss, float32, and what `losses` gives beside it."""
        used = self.used(state.trainable)
        found, aux = self._differentiated(used, state.non_trainable, batch, count, microstep)
        return [whole(gradient) for gradient in found], aux

    def used(self, trainable: list[jax.Array]) -> list[jax.Array]:
        """Returns the trainable weights in the type in which the model uses them, see `runner.engine.jax.precision`.

        Each part is rounded where it lies: what is gathered is what is used.
        """
        held = zip(trainable, self._variables, self._shardings.state.trainable, strict=True)
        found = [
            value
            if value.dtype == variable.dtype
            else lax.with_sharding_constraint(rounded(value, variable.dtype), sharding)
            for value, variable, sharding in held
        ]
        for index, sharding in self._shardings.gathered.items():
            found[index] = lax.with_sharding_constraint(found[index], sharding)
        return found

    def _gradients_of_losses(self, *arguments: object) -> tuple[list[jax.Array], Aux]:
        with exact_kernel_gradients(self._spread), exact_row_gradients():
            found: tuple[list[jax.Array], Aux] = jax.grad(self.losses, has_aux=True)(*arguments)
        return found

    def step(
        self, state: State[jax.Array], split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[State[jax.Array], Sums, jax.Array]:
        """Round `index` of a call, see `many`: the new state, each example's loss and metrics, regularization."""
        batch, count, microstep = self._batch(split, arrays, numbers, index)
        gradients, (loss_b, outputs, regularization, weights) = self.gradients(state, batch, count, microstep)
        done = (numbers[1] + index // self._microbatches).astype(jnp.float32)
        factor = lax.bitcast_convert_type(numbers[2], jnp.float32)
        with jax.named_scope("update"):
            new = self._update(
                state._replace(non_trainable=weights), gradients, done, index % self._microbatches, factor
            )
        metrics = self._task.metrics(self._ops, outputs, batch)
        sums = {LOSS: loss_b} | {name: metrics[name].astype(jnp.float32) for name in self._task.step_metrics}
        placed: State[jax.Array] = lax.with_sharding_constraint(new, self._shardings.state)
        return placed, sums, regularization

    def _update(
        self,
        state: State[jax.Array],
        gradients: list[jax.Array],
        done: jax.Array,
        microbatch: jax.Array,
        factor: jax.Array,
    ) -> State[jax.Array]:
        config = self._config.optimizer
        rate = learning_rate(config, done, self._total_steps, jnp) * factor
        if self._microbatches > 1:
            begun = [jnp.where(microbatch > 0, old, jnp.zeros_like(old)) for old in state.grad_accum]
            gradients = [old + new for old, new in zip(begun, gradients, strict=True)]
        clipped = clip(config.clip, gradients, jnp)
        trainable: list[jax.Array] = []
        slots: list[list[jax.Array]] = [[] for _ in self._rule.slots]
        for index, (weight, gradient) in enumerate(zip(state.trainable, clipped, strict=True)):
            old = {slot: whole(before[index]) for slot, before in zip(self._rule.slots, state.slots, strict=True)}
            new_weight, new = self._rule.update(gradient, whole(weight), old, rate, done + 1.0)
            trainable.append(rounded(self._constrained(index, new_weight), weight.dtype))
            for name, before, after in zip(self._rule.slots, state.slots, slots, strict=True):
                after.append(rounded(new[name], before[index].dtype))
        pairs = zip(state.ema, trainable, strict=bool(state.ema))
        ema = [rules.average(config.ema.decay or 0.0, a, whole(w), done, jnp) for a, w in pairs]
        changed = state._replace(trainable=trainable, slots=slots, ema=ema)
        if self._microbatches == 1:
            return changed
        last = microbatch == self._microbatches - 1  # else all but the sums stays as it was
        chosen: State[jax.Array] = jax.tree.map(lambda new, old: jnp.where(last, new, old), changed, state)
        return chosen._replace(non_trainable=state.non_trainable, grad_accum=gradients)

    def _constrained(self, index: int, weight: jax.Array) -> jax.Array:
        """Returns a trainable variable's new value as its constraint has it, which is called as `fit` calls it."""
        variable = self._variables[index]
        if variable.constraint is None:
            return weight
        with private.in_float32([variable]), keras.StatelessScope(state_mapping=[(variable, weight)]):
            found: jax.Array = keras.ops.convert_to_tensor(variable.constraint(variable), variable.dtype)
            return found

    def many(
        self, state: State[jax.Array], split: Arrays | None, arrays: Arrays, numbers: jax.Array
    ) -> tuple[State[jax.Array], Sums, jax.Array]:
        """A call's steps as one program, their number an input so that it needs no compilation of its own.

        Args:
          state: before.
          split: (N, ...) by name, the split's arrays where the devices keep them, else None.
          arrays: (K, B, ...) by name; with `split`, `row` int32 (K, B) in their place. `weight` is among them.
          numbers: int32 (3 + K,): rounds to do, steps done before, and the bits of float32 numbers: what the learning
            rate is multiplied by, and what the examples of each round's step count for.

        Returns:
          The new state, losses and metrics (K, B) by name, and regularization (K,), 0 for what was not computed.
        """

        def body(
            index: jax.Array, carried: tuple[State[jax.Array], Sums, jax.Array]
        ) -> tuple[State[jax.Array], Sums, jax.Array]:
            state, *found = carried
            state, *new = self.step(state, split, arrays, numbers, index)
            sums, regularization = jax.tree.map(
                lambda a, b: lax.dynamic_update_index_in_dim(a, b, index, 0), tuple(found), tuple(new)
            )
            return state, sums, regularization

        empty = lax.with_sharding_constraint(jnp.zeros(arrays[WEIGHT].shape, jnp.float32), self._shardings.sums)
        sums = dict.fromkeys((LOSS, *self._task.step_metrics), empty)
        start = (state, sums, jnp.zeros(empty.shape[:1], jnp.float32))
        found: tuple[State[jax.Array], Sums, jax.Array] = lax.fori_loop(0, numbers[0], body, start)
        return found

    def _batch(
        self, split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[Arrays, jax.Array, jax.Array]:
        """Returns a round's arrays, what its step's examples count for, and the micro-batches done before."""
        found = {
            name: self._constrain(name, lax.dynamic_index_in_dim(array, index, 0, keepdims=False))
            for name, array in arrays.items()
        }
        if split is not None:
            rows = found.pop(ROW)
            found |= {name: self._constrain(name, whole.at[rows].get(mode="clip")) for name, whole in split.items()}
        count = lax.bitcast_convert_type(numbers[COUNTS + index], jnp.float32)
        return found, count, numbers[1] * self._microbatches + index

    def _constrain(self, name: str, array: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(array, self._shardings.arrays[name])

    def whole_gradients(
        self, state: State[jax.Array], split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """The gradients of one micro-batch of a call's first batch, and the new non-trainable variables."""
        found, (*_, weights) = self.gradients(state, *self._batch(split, arrays, numbers, index))
        return found, weights

    def evaluated(self, weights: Weights, arrays: Arrays) -> tuple[jax.Array, Arrays, jax.Array | Arrays]:
        """Evaluates a batch, arrays (1, B, ...): each example's loss (B,), the task's totals, and the outputs.

        Those are left out where the task keeps none.
        """
        given, batch = self._outputs(weights, arrays)
        outputs = _float32(self._task.reduced(self._ops, given, batch))
        loss_b = self._task.loss(self._ops, outputs, batch)
        totals = self._task.totals(self._ops, outputs, batch)
        return loss_b, totals, outputs if self._task.keeps_outputs else {}

    def outputs(self, weights: Weights, arrays: Arrays) -> Outputs:
        """Returns what the task's functions take of a batch, arrays (1, B, ...), for `judged`."""
        given, batch = self._outputs(weights, arrays)
        return _float32(self._task.reduced(self._ops, given, batch))

    def judged(self, outputs: Outputs, arrays: Arrays, by_example: Sequence[bool], examples: int | None) -> Judged:
        """Returns each row's loss (B,) and the task's totals, of what `outputs` gave for the same batch.

        Args:
          outputs: of the batch.
          arrays: (1, B, ...) by name.
          by_example: of each of the outputs' tensors, whether it has a row per example, as a head's kernel has not.
          examples: the task is given the first so many rows alone, so that no padding is among them. None: all.
        """
        batch = {name: array[0] for name, array in arrays.items()}
        ops = self._ops
        size = batch[WEIGHT].shape[0]
        if examples is not None:
            batch = {name: array[:examples] for name, array in batch.items()}
            leaves, structure = jax.tree.flatten(outputs)
            held = [leaf[:examples] if cut else leaf for leaf, cut in zip(leaves, by_example, strict=True)]
            outputs = jax.tree.unflatten(structure, held)
            # The mesh need not divide so many examples: their tokens are not cut along its parts.
            ops = replace(ops, head_losses=partial(chunked, ops, WHOLE))
        loss_b = self._task.loss(ops, outputs, batch)
        totals = self._task.totals(ops, outputs, batch)
        return jnp.pad(loss_b, (0, size - loss_b.shape[0])), totals

    def next_logits(self, weights: Weights, arrays: Arrays) -> jax.Array:
        """Returns the task's logits (B, V) of a batch, arrays (1, B, ...)."""
        given, batch = self._outputs(weights, arrays)
        found: jax.Array = self._task.next_logits(self._ops, given, batch)
        return found

    def _outputs(self, weights: Weights, arrays: Arrays) -> tuple[jax.Array, Arrays]:
        """Returns what the model gives for a batch, arrays (1, B, ...), with nothing dropped; and the batch."""
        trainable = self.used(weights[0])
        non_trainable = weights[1]
        batch = {name: array[0] for name, array in arrays.items()}
        full = self._random.insert(non_trainable, 0)
        told = private.training_argument(self._model, training=False)
        with self._attention():
            given, _ = self._model.stateless_call(trainable, full, self._task.inputs(self._ops, batch), **told)
        return given, batch


def _float32(outputs: jax.Array) -> jax.Array:
    """Returns a model's outputs, one tensor or several, as the task takes them."""
    found: jax.Array = jax.tree.map(lambda each: each.astype(jnp.float32), outputs)
    return found
