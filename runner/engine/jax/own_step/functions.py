"""The functions of a custom step, as the mesh and the single device of a comparison call them; all are traced.

Shapes: B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from runner import arrays
from runner.data.base import WEIGHT
from runner.engine.jax import private
from runner.engine.jax.adapter import reason
from runner.engine.jax.layers.gradients import exact_gradients
from runner.engine.jax.own_step.parts import Parts, Values
from runner.engine.jax.partitioning import Partitioning
from runner.engine.jax.rounds import Arrays, Rounds, Sums, first_step, only_batch
from runner.errors import ConfigError, invalid
from runner.task.base import LOSS, Outputs
from runner.task.custom import EXAMPLES, StepTask

# Numbers that random keys are derived by: of a step, of an evaluation, of the layers' generators in either.
_OF_STEPS = 0
_OF_EVALUATIONS = 1
_FOR_USER = 0
_FOR_LAYERS = 1


class Functions:
    """A user's functions with the runner's forms of state and metrics around them."""

    def __init__(self, parts: Parts, task: StepTask, seed: int) -> None:
        self.parts = parts
        self.task = task
        self._seed = seed
        self.ops = arrays.of(jnp)

    def train(self, values: Values, batch: Arrays, done: jax.Array | int) -> tuple[dict[str, jax.Array], Sums]:
        """Returns the variables' new values after `done` steps, and each example's loss and metrics (B,) of a batch
        (B, ...).
        """
        rng, layers_key = self._keys(_OF_STEPS, done)
        state = self.parts.structured(values, layers_key)
        result = self._called("train_step", state, batch, rng)
        if not isinstance(result, tuple) or len(result) != 2:
            raise self.parts.invalid("train_step must return (state, metrics)", "return both")
        new_state, metrics = result
        names = (LOSS, *self.task.step_metrics)
        return self.parts.flat(new_state), self._by_example("train_step", metrics, names, batch)

    def evaluate(self, values: Values, batch: Arrays, number: jax.Array | int) -> Sums:
        """Returns each example's loss and metrics (B,) of a batch (B, ...), the evaluation's one of this number."""
        rng, layers_key = self._keys(_OF_EVALUATIONS, number)
        state = self.parts.structured(values, layers_key)
        metrics = self._called("evaluate", state, batch, rng)
        return self._by_example("evaluate", metrics, tuple(self.task.directions), batch)

    def totals(self, metrics: Sums, batch: Arrays) -> Arrays:
        """Returns the sums of an evaluation's metrics over the examples of a batch, and their number."""
        is_real_b = batch[WEIGHT] > 0
        totals = {}
        for name, value_b in metrics.items():
            if name != LOSS:
                totals[name] = jnp.sum(jnp.where(is_real_b, value_b, 0.0))
        totals[EXAMPLES] = jnp.sum(is_real_b.astype(jnp.float32))
        return totals

    def _keys(self, purpose: int, number: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """Returns the random key of a user's function, and that of the layers' generators."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self._seed), purpose), number)
        return jax.random.fold_in(key, _FOR_USER), jax.random.fold_in(key, _FOR_LAYERS)

    def _called(self, name: str, state: dict[str, Any], batch: Arrays, rng: jax.Array) -> Any:
        try:
            # A copy: the function may change its dict, and `Parts.flat` compares the result with the state as it was.
            return getattr(self.parts.step, name)(dict(state), self.task.scaled(self.ops, batch), rng)
        except ConfigError:
            raise
        except Exception as error:  # A user's function may raise anything.
            raise self.parts.invalid(f"{name} raised {reason(error)}", "fix it") from error

    def _by_example(self, function: str, metrics: object, names: tuple[str, ...], batch: Arrays) -> Sums:
        """Returns metrics as float32 (B,); a number for the whole batch counts for each example."""
        if not isinstance(metrics, Mapping) or set(metrics) != set(names):
            raise self.parts.invalid(
                f"{function} must return metrics {', '.join(names)}, "
                f"but returned {', '.join(map(str, metrics)) if isinstance(metrics, Mapping) else 'no dict'}",
                "declare them in task.maximize, task.minimize and task.log",
            )
        size = batch[WEIGHT].shape[0]
        by_example = {}
        for name in names:
            value = jnp.asarray(metrics[name], jnp.float32)
            if value.shape not in ((), (size,)):
                raise self.parts.invalid(
                    f"{function} returned {name} with shape {list(value.shape)}",
                    "return one number per example, [batch], or one number",
                )
            by_example[name] = jnp.broadcast_to(value, (size,))
        return by_example


class OwnStep(Rounds[dict[str, jax.Array]]):
    """The functions on a mesh."""

    def __init__(self, functions: Functions, partitioning: Partitioning) -> None:
        super().__init__(partitioning, 1, functions.task.step_metrics)
        self._functions = functions

    def step(
        self, state: dict[str, jax.Array], split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[dict[str, jax.Array], Sums, jax.Array]:
        """Returns one round's new state, losses and metrics (B,), and regularization, 0; see the base class."""
        batch, _, _ = self._batch(split, arrays, numbers, index)
        with self._attention(), exact_gradients(self._partitioning.spread_images):
            new_state, sums = self._functions.train(state, batch, first_step(numbers) + index)
        placed: dict[str, jax.Array] = lax.with_sharding_constraint(new_state, self._partitioning.state)
        return placed, sums, jnp.zeros((), jnp.float32)

    def evaluated(self, state: dict[str, jax.Array], arrays: Arrays, number: jax.Array) -> tuple[jax.Array, Arrays]:
        """Returns each example's loss (B,) and the totals of a batch, arrays (1, B, ...)."""
        batch = only_batch(arrays)
        with self._attention(), exact_gradients(self._partitioning.spread_images):
            metrics = self._functions.evaluate(state, batch, number)
        return metrics[LOSS], self._functions.totals(metrics, batch)

    def outputs(self, state: dict[str, jax.Array], name: str, arrays: Arrays) -> Outputs:
        """Returns the float32 outputs of one model for the inputs of a batch, arrays (1, B, ...)."""
        model = self._functions.parts.models[name]
        # No layer draws numbers in an inference: the key is of no effect.
        entry = self._functions.parts.structured(state, jax.random.key(0))[name]
        inputs = self._functions.task.inputs(self._functions.ops, only_batch(arrays))
        training = private.training_argument(model, training=False)
        try:
            outputs, _ = model.stateless_call(entry.trainable, entry.non_trainable, inputs, **training)
        except Exception as error:  # A model may raise anything for inputs that are not its own.
            raise invalid(
                "task.exported",
                name,
                problem=f"the model does not take the task's inputs, {', '.join(self._functions.task.input_names)} "
                f"({reason(error)})",
                fix="set task.inputs to the arrays that it takes, or task.exported to another model",
            ) from error
        return jax.tree.map(lambda output: output.astype(jnp.float32), outputs)
