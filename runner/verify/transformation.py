"""An Optax transformation on one device, with the part of a Keras optimizer's interface that the reference uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras

from runner.arrays import Tensor
from runner.config.schema import OptimizerConfig
from runner.engine.jax.updates import slots_of_transformation
from runner.engine.optim import transformation
from runner.engine.optim.groups import Settings
from runner.engine.optim.rules import Slot
from runner.engine.optim.schedules import learning_rate


@dataclass(eq=False)
class Variable:
    """One array of the state, at the start."""

    value: Any

    @property
    def dtype(self) -> Any:
        """Returns the array's dtype."""
        return self.value.dtype


class TransformationOptimizer:
    """Updates weights by what the user's transformation returns, multiplied by the learning rate.

    Attributes:
      variables: the step count first, then the leaves of the transformation's state.
      iterations: the step count.
      by_slot: kinds of state, each with its variables by path; the path of state of the whole optimizer is empty.
    """

    variables: list[Variable]
    iterations: Variable
    by_slot: list[tuple[Slot, dict[str, Variable]]]

    def __init__(self, config: OptimizerConfig, total_steps: int, settings: Mapping[str, Settings]) -> None:
        """Calls the user's function; `build` makes the state."""
        self._config = config
        self._total_steps = total_steps
        self._settings = settings
        self._transformation = transformation.make(config)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes the first state from the variables' values, in the order of the settings."""
        self._variables = list(variables)
        # In float32, as the engine updates, whatever the layers compute in.
        values = dict(zip(self._settings, (jnp.asarray(one.value, jnp.float32) for one in variables), strict=True))
        state = self._transformation.init(values)
        leaves, self._structure = jax.tree.flatten(state)
        self.iterations = Variable(jnp.int32(0))
        state_variables = [Variable(jnp.asarray(leaf)) for leaf in leaves]
        self.variables = [self.iterations, *state_variables]
        self.by_slot = []
        slots, places = slots_of_transformation(jax.eval_shape(lambda: state), values)
        for slot, numbers in zip(slots, places, strict=True):
            by_path = {path: state_variables[number] for path, number in zip(slot.paths, numbers, strict=True)}
            self.by_slot.append((slot, by_path))

    def stateless_apply(
        self, values: list[Tensor], gradients: list[Tensor], weights: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns new weights, after their constraints, and new values of the variables."""
        iterations, *leaves = values
        rate = learning_rate(self._config, iterations.astype(jnp.float32), self._total_steps, jnp)
        state = jax.tree.unflatten(self._structure, leaves)
        by_path = dict(zip(self._settings, weights, strict=True))
        changes, state = self._transformation.update(dict(zip(self._settings, gradients, strict=True)), state, by_path)
        new_weights = []
        for (path, own), variable in zip(self._settings.items(), self._variables, strict=True):
            # Optax's convention: updates are added, and a transformation that descends has negative ones.
            weight = by_path[path] + changes[path] * (rate * own.rate)
            if variable.constraint is not None:
                weight = variable.constraint(weight)
            new_weights.append(weight)
        return new_weights, [iterations + 1, *jax.tree.leaves(state)]
