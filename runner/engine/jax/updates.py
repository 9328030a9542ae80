"""Updates of all trainable variables: by our rules, or by an optimizer of Keras 3 itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from runner import arrays
from runner.config.schema import OptimizerConfig
from runner.engine.jax import private
from runner.optim import rules
from runner.optim.base import Slot, whole_slots
from runner.optim.keras_classes import CLASSES
from runner.optim.registry import OPTIMIZERS
from runner.optim.stock import keras_arguments, keras_slots

Values = list[jax.Array]
# (number of the trainable variable, its new value) -> its value after its constraint
Constrain = Callable[[int, jax.Array], jax.Array]


class UpdateRule(ABC):
    """The optimizer's update as a pure function of all trainable variables.

    Attributes:
      slots: kinds of state that it has.
    """

    slots: Sequence[Slot]

    @abstractmethod
    def apply(
        self,
        gradients: Values,
        weights: Values,
        slots: list[Values],
        rate: jax.Array,
        done: jax.Array,
        constrain: Constrain,
    ) -> tuple[Values, list[Values]]:
        """Returns the new weights, after their constraints, and the new slots.

        Args:
          gradients: of the trainable variables, clipped; all arrays are float32.
          weights: before.
          slots: one list per kind of state, of the variables that have it.
          rate: float32 (), learning rate.
          done: float32 (), steps done before.
          constrain: applies the variables' constraints.
        """


def make(config: OptimizerConfig, paths: Sequence[str], variables: Sequence[keras.Variable]) -> UpdateRule:
    """Returns the update of a checked config.

    Args:
      config: of the optimizer.
      paths: of the trainable variables.
      variables: the trainable ones, which need no values.
    """
    if OPTIMIZERS[config.name].is_keras_class:
        return KerasUpdate(config, paths, variables)
    return OwnUpdate(config, paths, variables)


def _ranks(paths: Sequence[str], variables: Sequence[keras.Variable]) -> dict[str, int]:
    return {path: len(variable.shape) for path, variable in zip(paths, variables, strict=True)}


class OwnUpdate(UpdateRule):
    """Our rule, variable by variable."""

    def __init__(self, config: OptimizerConfig, paths: Sequence[str], variables: Sequence[keras.Variable]) -> None:
        """Makes the rule."""
        self._rule = rules.make_rule(config, jnp)
        self.slots = whole_slots(self._rule.slots, _ranks(paths, variables), self._rule.initial)

    def apply(
        self,
        gradients: Values,
        weights: Values,
        slots: list[Values],
        rate: jax.Array,
        done: jax.Array,
        constrain: Constrain,
    ) -> tuple[Values, list[Values]]:
        """Updates each variable by the rule."""
        new_weights = []
        new_slots: list[Values] = [[] for _ in slots]
        for index, (gradient, weight) in enumerate(zip(gradients, weights, strict=True)):
            own_slots = {}
            for name, values in zip(self._rule.slots, slots, strict=True):
                own_slots[name] = values[index]
            new_weight, updated = self._rule.update(gradient, weight, own_slots, rate, done + 1.0)
            new_weights.append(constrain(index, new_weight))
            for name, values in zip(self._rule.slots, new_slots, strict=True):
                values.append(updated[name])
        return new_weights, new_slots


class KerasUpdate(UpdateRule):
    """An optimizer of Keras 3, by its `stateless_apply`.

    Its step count, learning rate and other numbers that are functions of the step are computed, and not stored.
    """

    def __init__(self, config: OptimizerConfig, paths: Sequence[str], variables: Sequence[keras.Variable]) -> None:
        """Builds the optimizer without values of its state."""
        self._variables = list(variables)
        self._class = CLASSES[config.class_name or ""]
        self._options = config.options
        self._rate = _TracedRate()
        arguments = keras_arguments(config)
        # As stock Keras has a number or a schedule: Adafactor limits the rate only if it is a number.
        arguments["learning_rate"] = config.learning_rate
        if config.schedule.name != "constant":
            arguments["learning_rate"] = self._rate
        self._optimizer = getattr(keras.optimizers, config.class_name or "")(**arguments)
        private.build_abstractly(self._optimizer, self._variables)
        self.slots = []
        self._slot_variables: list[list[keras.Variable]] = []
        for slot, slot_variables in keras_slots(config, self._optimizer, _ranks(paths, variables)):
            self.slots.append(slot)
            self._slot_variables.append(list(slot_variables.values()))

    def apply(
        self,
        gradients: Values,
        weights: Values,
        slots: list[Values],
        rate: jax.Array,
        done: jax.Array,
        constrain: Constrain,
    ) -> tuple[Values, list[Values]]:
        """Updates all variables at once; Keras applies the constraints itself."""
        del constrain
        optimizer = self._optimizer
        values: dict[int, jax.Array] = {id(optimizer.iterations): done.astype(optimizer.iterations.dtype)}
        if isinstance(optimizer._learning_rate, keras.Variable):
            values[id(optimizer._learning_rate)] = rate
        self._rate.value = rate
        for attribute, function in self._class.from_step.items():
            values[id(getattr(optimizer, attribute))] = function(self._options, done, arrays.of(jnp))
        for variables, slot_values in zip(self._slot_variables, slots, strict=True):
            for variable, value in zip(variables, slot_values, strict=True):
                values[id(variable)] = value
        # What is left are Keras's placeholders for state that a variable does not have.
        in_order = [values.get(id(variable), jnp.zeros(variable.shape)) for variable in optimizer.variables]
        with private.in_float32([*self._variables, *optimizer.variables]):
            new_weights, new_in_order = optimizer.stateless_apply(in_order, gradients, weights)
        indices = {id(variable): index for index, variable in enumerate(optimizer.variables)}
        new_slots = []
        for variables in self._slot_variables:
            new_slots.append([new_in_order[indices[id(variable)]] for variable in variables])
        return list(new_weights), new_slots


class _TracedRate:
    """A learning rate that Keras calls for, as it does with schedules.

    Attributes:
      value: of the step that is traced.
    """

    value: Any = None

    def __call__(self) -> Any:
        """Returns the rate of the step that is traced."""
        return self.value
