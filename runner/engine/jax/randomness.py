"""Random generators of a Keras 3 model, as functions of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import keras
import numpy as np

from runner.config.schema import ModelConfig
from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.precision import kind_of
from runner.errors import ConfigError


@dataclass(frozen=True)
class Randomness:
    """The model's random generators as functions of the step, so that no state of theirs has to be kept.

    Keras's generator is a seed and a counter of its draws. With the counter set to the step times the draws of a step,
    it gives the numbers that Keras's own training draws, on any mesh and after any resume.

    Attributes:
      indices: places of the generators' states among the model's non-trainable variables.
      seeds: uint32 (len(indices), 2), the states before the first step.
      draws: how far a step moves each counter.
    """

    indices: Sequence[int]
    seeds: Array
    draws: Sequence[int]

    def insert(self, weights: Sequence[jax.Array], done: jax.Array | int) -> list[jax.Array]:
        """Returns the model's non-trainable variables. Its weights, and the states after `done` micro-batches."""
        variables = list(weights)
        for index, (seed, counter), draws in zip(self.indices, self.seeds, self.draws, strict=True):
            moved = jnp.asarray(done, jnp.uint32) * jnp.uint32(draws)
            variables.insert(index, jnp.stack([jnp.uint32(seed), jnp.uint32(counter) + moved]))
        return variables

    def remove(self, variables: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the weights among the model's non-trainable variables."""
        states = set(self.indices)
        return [value for index, value in enumerate(variables) if index not in states]


def of(model: keras.Model, inputs: object, config: ModelConfig) -> Randomness:
    """Returns a model's random generators, and how far a training step moves each.

    Raises:
      ConfigError: steps do not move a generator evenly, so that its state is not a function of the step.
    """
    indices = seed_indices(model)
    if not indices:
        return unmoved(model)
    states = [np.asarray([model.non_trainable_variables[index].value for index in indices], np.uint32)]
    move = _compiled_move(model, inputs, indices)
    # Two steps: a generator must move by the same count from two different states.
    for _ in range(2):
        states.append(move(states[-1]))
    first_moves, second_moves = np.diff(states, axis=0)
    for index, first, second in zip(indices, first_moves, second_moves, strict=True):
        seed_changes = first[0] != 0
        if seed_changes or (first != second).any():
            raise ConfigError(
                f"model._target_={config.target}: a step does not move the state of random generator "
                f"{model.non_trainable_variables[index].path} by the same count each time; draw with seed=generator, "
                "or generator.next()"
            )
    return Randomness(indices, states[0], first_moves[:, 1].tolist())


def _compiled_move(model: keras.Model, inputs: object, indices: Sequence[int]) -> Callable[[Array], Array]:
    """Returns a function that moves the generators' states, uint32 (len(indices), 2), by one step."""
    trainable_count = len(model.trainable_variables)

    def step(values: list[jax.Array], inputs: object) -> list[jax.Array]:
        _, new = model.stateless_call(
            values[:trainable_count],
            values[trainable_count:],
            inputs,
            **private.training_argument(model, training=True),
        )
        return [new[index] for index in indices]

    variables = [*model.trainable_variables, *model.non_trainable_variables]
    trace = jax.make_jaxpr(step)(list(map(kind_of, variables)), inputs)
    # Only the operations that the states come from are left, so that no weight needs a value. Where the states depend
    # on an input of the trace all the same, zeros do: they decide no count.
    left, is_used = private.remove_unused(trace.jaxpr)
    compiled = jax.jit(lambda values: jax.core.eval_jaxpr(left, trace.consts, *values))

    def move(states: Array) -> Array:
        states_by_input = {trainable_count + index: state for index, state in zip(indices, states, strict=True)}
        values = []
        for number, aval in enumerate(trace.in_avals):
            if is_used[number]:
                values.append(states_by_input.get(number, np.zeros(aval.shape, aval.dtype)))
        return np.asarray(compiled(values), np.uint32)

    return move


def seed_indices(model: keras.Model) -> list[int]:
    """Returns the indices of generator states among non-trainable variables."""
    weights = set(map(id, model.non_trainable_weights))
    indices = []
    for index, variable in enumerate(model.non_trainable_variables):
        if id(variable) not in weights:
            indices.append(index)
    return indices


def unmoved(model: keras.Model) -> Randomness:
    """Returns a model's generators when no number is drawn. So it is in a plan, whose variables have no values."""
    indices = seed_indices(model)
    return Randomness(indices, np.zeros((len(indices), 2), np.uint32), [0] * len(indices))
