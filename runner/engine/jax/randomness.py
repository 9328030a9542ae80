"""The random generators of a Keras 3 model, as functions of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from runner.config.schema import ModelConfig
from runner.data.base import Array
from runner.engine.jax import private
from runner.errors import ConfigError


@dataclass(frozen=True)
class Randomness:
    """The model's random generators as functions of the step, so that no state of theirs has to be kept.

    Keras's generator is a seed and a counter of its draws. Setting the counter to the step times the draws of a step
    gives the numbers that Keras's own training draws, on any mesh and after any resume.

    Attributes:
      indices: of the generators' states among the model's non-trainable variables.
      seeds: uint32 (len(indices), 2), the states before the first step.
      draws: how far a step moves each counter.
    """

    indices: Sequence[int]
    seeds: Array
    draws: Sequence[int]

    def insert(self, non_trainable: Sequence[jax.Array], done: jax.Array | int) -> list[jax.Array]:
        """Returns the model's non-trainable variables: its weights, and the states after `done` micro-batches."""
        full = list(non_trainable)
        for index, seed, draws in zip(self.indices, self.seeds, self.draws, strict=True):
            moved = jnp.asarray(done, jnp.uint32) * jnp.uint32(draws)
            full.insert(index, jnp.stack([jnp.uint32(seed[0]), jnp.uint32(seed[1]) + moved]))
        return full

    def remove(self, full: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the weights among the model's non-trainable variables."""
        return [value for index, value in enumerate(full) if index not in set(self.indices)]


def of(model: keras.Model, inputs: Any, config: ModelConfig) -> Randomness:
    """Returns a model's random generators, and how far a training step moves each.

    Args:
      model: built; its generators' states have values, its weights need none.
      inputs: shapes of a batch of what it takes.
      config: the model's.

    Raises:
      ConfigError: a generator that steps do not move evenly, so that its state is no function of the step.
    """
    indices = seed_indices(model)
    if not indices:
        return unmoved(model)
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    count = len(model.trainable_variables)

    def step(values: list[jax.Array], inputs: Any) -> list[jax.Array]:
        told = private.training_argument(model, training=True)
        _, new = model.stateless_call(values[:count], values[count:], inputs, **told)
        return [new[index] for index in indices]

    shapes = [jax.ShapeDtypeStruct(tuple(each.shape), each.dtype) for each in variables]
    traced = jax.make_jaxpr(step)(shapes, inputs)
    # Without all that the states do not come of: no weight has to be there.
    left, used = private.without_unused(traced.jaxpr)
    compiled = jax.jit(lambda given: jax.core.eval_jaxpr(left, traced.consts, *given))
    others = {index: model.non_trainable_variables[index].value for index in indices}

    def moved() -> list[jax.Array]:
        found: list[jax.Array] = compiled(
            [
                others.get(number - count, np.zeros(each.shape, each.dtype))
                for number, each in enumerate(traced.in_avals)
                if used[number]
            ]
        )
        return found

    states = [np.asarray(list(others.values()), np.uint32)]
    for _ in range(2):  # from two states, for what moves them must not depend on them
        states.append(np.asarray(moved(), np.uint32))
        for index, state in zip(indices, states[-1], strict=True):
            others[index] = jnp.asarray(state)
    moves = np.diff(states, axis=0)
    for index, first, second in zip(indices, *moves, strict=True):
        if first[0] or (first != second).any():
            raise ConfigError(
                f"model._target_={config.target}: the state of random generator "
                f"{model.non_trainable_variables[index].path} is not moved by the same count in each step; draw with "
                "seed=generator, or generator.next()"
            )
    return Randomness(indices, states[0], [int(count) for count in moves[0][:, 1]])


def seed_indices(model: keras.Model) -> list[int]:
    """Returns where among the model's non-trainable variables the states of its random generators are."""
    weights = {id(variable) for variable in model.non_trainable_weights}
    return [i for i, variable in enumerate(model.non_trainable_variables) if id(variable) not in weights]


def unmoved(model: keras.Model) -> Randomness:
    """Returns a model's generators where no number is drawn, as in a plan, whose variables have no values."""
    indices = seed_indices(model)
    return Randomness(indices, np.zeros((len(indices), 2), np.uint32), [0] * len(indices))
