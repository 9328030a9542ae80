"""The parts of a custom step: its models, its optimizers, their variables, and the state that its functions take.

The user's class has its models and optimizers as attributes, as a subclass of `keras.Model` has. The attribute's name
begins the canonical path of each variable: `critic/dense/kernel` of a model, `optimizer/critic_optimizer.velocities/
critic/dense/kernel` of an optimizer, and `optimizer/critic_optimizer/iteration` of a variable that belongs to none.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import keras

from runner.config.import_path import raised
from runner.config.schema import RunConfig
from runner.engine.jax import private
from runner.engine.jax.adapter import Keras3Factory, under_policy
from runner.engine.jax.names import Names
from runner.engine.jax.precision import kind_of
from runner.engine.jax.shards import FirstValue, host_memory
from runner.engine.mappings import keys_by_id, map_values
from runner.engine.optim.keras_classes import stock_optimizer
from runner.engine.optim.schedules import is_constant, learning_rate
from runner.errors import ConfigError
from runner.layout.paths import RESERVED, slot_path
from runner.model import builder, preprocessing
from runner.model.own_modules import seeded
from runner.model.stored import StoredValue
from runner.task.base import DataSpec
from runner.task.custom import StepTask

Values = Mapping[str, jax.Array]
KEY = "task._target_"
_HOLDERS = (keras.Model, keras.optimizers.Optimizer, keras.Variable)


class ModelState(NamedTuple):
    """The variables of one model, as `Model.stateless_call` takes and returns them, with random generators' states."""

    trainable: Sequence[Any]
    non_trainable: Sequence[Any]


# What a user's functions get and return: a model's `ModelState`, or a list of an optimizer's variables, by name.
StepState = dict[str, Any]


@dataclass(frozen=True)
class Parts:
    """A user's class after `build`, with its models and optimizers by attribute.

    Attributes:
      model_variables: weights of all models by canonical path, in each model's order.
      optimizer_variables: variables of all optimizers by canonical path.
      owners: path of an optimizer's variable -> path of the weight that it belongs to; empty: to none.
    """

    step: Any
    path: str
    models: Mapping[str, keras.Model]
    optimizers: Mapping[str, keras.optimizers.Optimizer]
    model_variables: Mapping[str, keras.Variable]
    optimizer_variables: Mapping[str, keras.Variable]
    owners: Mapping[str, str]

    @cached_property
    def variables(self) -> dict[str, keras.Variable]:
        """Returns all variables that a step may change, by canonical path."""
        return {**self.model_variables, **self.optimizer_variables}

    @cached_property
    def trained(self) -> list[str]:
        """Returns the paths of the variables that an optimizer updates, in the order of the models."""
        # Not those with slots: an optimizer without any, such as SGD, trains its variables all the same.
        trained = set[int]()
        for optimizer in self.optimizers.values():
            trained.update(map(id, private.optimizer_variables(optimizer)))
        return [path for path, variable in self.model_variables.items() if id(variable) in trained]

    @cached_property
    def _paths(self) -> dict[int, str]:
        return keys_by_id(self.variables)

    def structured(self, values: Values, layers_key: jax.Array) -> StepState:
        """Returns the state as a user's functions take it, with states of random generators made from the key."""
        numbers = itertools.count()

        def value_of(variable: keras.Variable) -> jax.Array:
            path = self._paths.get(id(variable))
            if path is None:
                return jax.random.key_data(jax.random.fold_in(layers_key, next(numbers)))
            return values[path]

        state: StepState = {}
        for name, model in self.models.items():
            non_trainable = list(map(value_of, model.non_trainable_variables))
            state[name] = ModelState(list(map(value_of, model.trainable_variables)), non_trainable)
        for name, optimizer in self.optimizers.items():
            state[name] = list(map(value_of, optimizer.variables))
        return state

    def flat(self, state: object) -> dict[str, jax.Array]:
        """Returns the values by path in a state that `train_step` returned, without those of random generators.

        Raises:
          ConfigError: it has other entries, or a value of another shape or dtype.
        """
        variables: dict[str, list[keras.Variable]] = {}
        for name, model in self.models.items():
            variables[name] = [*model.trainable_variables, *model.non_trainable_variables]
        for name, optimizer in self.optimizers.items():
            variables[name] = optimizer.variables
        if not isinstance(state, Mapping) or not set(variables) <= set(state):
            raise self.invalid(
                f"train_step must return (state, metrics), with state a dict of {', '.join(variables)}",
                "write state = {**state, 'model': state['model']._replace(trainable=...)}",
            )
        values: dict[str, jax.Array] = {}
        for name, own in variables.items():
            arrays = list(map(jax.numpy.asarray, jax.tree.leaves(state[name])))
            if list(map(kind_of, arrays)) != list(map(kind_of, own)):
                raise self.invalid(
                    f"train_step returned other shapes or dtypes in state[{name!r}] than it got",
                    f"return what stateless_call or stateless_apply returned, or state[{name!r}]._replace(...)",
                )
            for variable, array in zip(own, arrays, strict=True):
                path = self._paths.get(id(variable))
                if path is not None:
                    values[path] = array
        return values

    def invalid(self, problem: str, fix: str) -> ConfigError:
        """Returns the error of a user's class that does not do what a step must."""
        return _invalid(self.path, problem, fix)


def parts_of(step: Any, path: str) -> Parts:
    """Returns the models and optimizers among the attributes of a user's class, whose `build` was called.

    Raises:
      ConfigError: it has none, one in a list, two models share a variable, or a name is reserved.
    """
    models: dict[str, keras.Model] = {}
    optimizers: dict[str, keras.optimizers.Optimizer] = {}
    for name, value in vars(step).items():
        if isinstance(value, keras.Model):
            models[name] = value
        elif isinstance(value, keras.optimizers.Optimizer):
            optimizers[name] = value
        elif any(isinstance(leaf, _HOLDERS) for leaf in keras.tree.flatten(value)):
            raise ConfigError(
                f"{KEY}={path}: attribute {name} holds models, optimizers or variables; give each model and each "
                "optimizer an attribute of its own, and make a variable a weight of a model"
            )
    if not models:
        raise _invalid(path, "build made no model", "set self.<name> = keras.Model(...) in build")
    for name in (*models, *optimizers):
        if name in RESERVED or name.startswith("_"):
            raise _invalid(path, f"attribute {name} is reserved in checkpoints or private", "rename it")
    model_variables: dict[str, keras.Variable] = {}
    owner_paths: dict[int, str] = {}
    for name, model in models.items():
        for short, variable in Names(model).variables.items():
            if id(variable) in owner_paths:
                raise _invalid(
                    path,
                    f"model {name} shares variable {owner_paths[id(variable)]} with another one",
                    "keep one of the two models as an attribute, and get the other from it",
                )
            owner_paths[id(variable)] = f"{name}/{short}"
            model_variables[f"{name}/{short}"] = variable
    optimizer_variables: dict[str, keras.Variable] = {}
    owners: dict[str, str] = {}
    for name, optimizer in optimizers.items():
        slots = _slots(optimizer, owner_paths)
        for variable in optimizer.variables:
            slot, owner = slots.get(id(variable), ("", ""))
            variable_path = slot_path(name, variable.name)
            if owner:
                variable_path = slot_path(f"{name}.{slot}", owner)
            number = 1
            while variable_path in owners:
                # Some optimizers give several variables one name.
                number += 1
                variable_path = slot_path(name, f"{variable.name}_{number}")
            optimizer_variables[variable_path] = variable
            owners[variable_path] = owner
    return Parts(step, path, models, optimizers, model_variables, optimizer_variables, owners)


def _invalid(path: str, problem: str, fix: str) -> ConfigError:
    return ConfigError(f"{KEY}={path}: {problem}; {fix}")


def _slots(optimizer: keras.optimizers.Optimizer, paths: Mapping[int, str]) -> dict[int, tuple[str, str]]:
    """Returns id of an optimizer's variable -> (slot, path of the variable that it belongs to).

    A slot is an attribute with one entry per trained variable, in their order; some have none for some of them.
    """
    trained = private.optimizer_variables(optimizer)
    own = set(map(id, optimizer.variables))
    slots: dict[int, tuple[str, str]] = {}
    for attribute, value in vars(optimizer).items():
        # Keras 3's own list of all variables of the optimizer may happen to be as long as that of the trained ones.
        if not isinstance(value, list | tuple) or attribute == "_variables" or len(value) != len(trained):
            continue
        for variable, entry in zip(trained, value, strict=True):
            if id(entry) in own:
                slots.setdefault(id(entry), (attribute.strip("_"), paths.get(id(variable), "")))
    return slots


class OwnStepFactory:
    """Makes the user's class and calls its `build` with Keras 3."""

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int) -> None:
        assert isinstance(data.task, StepTask)
        self._config = config
        self._data = data
        self._task = data.task
        self._total_steps = total_steps

    def build(self) -> Parts:
        """Returns the parts with their initial values; raises ConfigError if the class or its `build` is wrong."""
        path = self._task.path
        private.reset_layer_names()
        seed = self._config.trainer.seed
        with seeded(seed), under_policy(builder.POLICIES[self._config.engine.precision]):
            try:
                step = self._task.make_step()
                step.build(**self._arguments(step, path))
            except ConfigError:
                raise
            except Exception as error:  # A user's class may raise anything.
                raise ConfigError(f"{KEY}={path}: build raised {raised(error)}; fix it") from error
            parts = parts_of(step, path)
        preprocessing.settle(self._task, parts.models.values())
        return parts

    def build_for_mesh(self) -> tuple[Parts, dict[str, StoredValue]]:
        """Returns the parts without values, and the initial values of their variables in the host's memory.

        An optimizer's build needs values, so they are drawn at once.
        """
        with host_memory():
            parts = self.build()
        return parts, map_values(FirstValue, parts.variables)

    def _arguments(self, step: Any, path: str) -> dict[str, Any]:
        makers: dict[str, Callable[[], Any]] = {
            "keras": lambda: keras,
            "inputs": lambda: self._data.inputs,
            "outputs": lambda: self._data.task.outputs,
            "model": self._model,
            "optimizer": self._optimizer,
        }
        arguments = {}
        for name, parameter in inspect.signature(step.build).parameters.items():
            if name in makers:
                arguments[name] = makers[name]()
            elif parameter.default is inspect.Parameter.empty:
                raise ConfigError(
                    f"{KEY}={path}: build takes {name}, but may take {', '.join(makers)} only; options are arguments "
                    f"of the class, set +task.arguments.{name}=..."
                )
        return arguments

    def _model(self) -> keras.Model:
        config = self._config
        return Keras3Factory(config.model, self._data, config.trainer.seed, config.engine.precision).call_builder()

    def _optimizer(self) -> keras.optimizers.Optimizer:
        config = self._config.optimizer
        if is_constant(config.schedule):
            return stock_optimizer(config, config.learning_rate, keras)
        total_steps = self._total_steps

        class Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
            def __call__(self, step: jax.Array) -> jax.Array:
                return learning_rate(config, jax.numpy.asarray(step, "float32"), total_steps, jax.numpy)

            def get_config(self) -> dict[str, object]:
                return {}

        return stock_optimizer(config, Schedule(), keras)
