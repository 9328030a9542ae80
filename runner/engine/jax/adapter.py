"""Keras 3 models for the engine `jax`: builder calls that depend on the seed alone, and what is checked of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import jax
import keras
import numpy as np

from runner.config.schema import ModelConfig, RunConfig
from runner.data.base import Array, ArraySpec
from runner.engine.base import as_called
from runner.engine.jax import private, tuning
from runner.engine.jax.initial import HostValue, Initial, Slice, holds_traced, slices
from runner.engine.jax.names import Names
from runner.engine.jax.probe import check_kept
from runner.engine.jax.shards import host_memory
from runner.errors import ConfigError, in_one_line
from runner.host.imports import seeded
from runner.model import builder, contract, padding, stored, target
from runner.model.stored import StoredValue
from runner.task.base import DataSpec

T = TypeVar("T")

# Layers whose operations Keras 3 has for TensorFlow's tensors and no other.
_IN_TENSORFLOW = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


class Keras3Factory:
    """Calls a config's builder with Keras 3; weights and dropout seeds depend on the config's seed alone."""

    def __init__(self, config: ModelConfig, data: DataSpec, seed: int, precision: str = "float32") -> None:
        self._config = config
        self._data = data
        self._seed = seed
        self._policy = builder.policy_name(precision)
        self._builder = target.load(config.target)

    def build(self) -> keras.Model:
        """Returns the built model of stock Keras, whole on one device.

        Raises:
          ConfigError: the builder raised, or returned something that is not a built model.
        """
        model = self._built()
        told = stored.attached(model)
        for variable in model.weights:
            if id(variable) in told:
                variable.assign(stored.read_whole(told[id(variable)]))
        return model

    def begin(self, *, whole: bool = False) -> tuple[keras.Model, Initial]:
        """Returns the model, whose variables hold no values, and what they begin with.

        A builder that wants values as it builds, or layers that keep what they computed then, get them, whole on one
        device; each is let go of when it is placed.

        Args:
          whole: the builder is known to be one of these.

        Raises:
          ConfigError: as `build`.
        """
        model, made = (None if whole else self._trace()) or self._hold()
        variables = Names(model).variables
        told = stored.attached(model)
        values = {path: told.get(id(variable), made[id(variable)]) for path, variable in variables.items()}
        for variable in variables.values():
            private.release(variable)
        return model, Initial(values)

    def assigned(self, values: Mapping[str, Array]) -> keras.Model:
        """Returns the model, whole on one device, with given values; none is drawn.

        Args:
          values: whole arrays by canonical path, each asked for when the last is set.

        Raises:
          ConfigError: as `build`.
        """
        model, _ = self.begin()
        assign(model, values)
        told = private.training_argument(model, training=False)
        inputs = model_inputs(self._data, lambda spec: jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype))
        try:
            # Without a scope a random generator that is drawn from would hold on to the trace's state.
            with keras.StatelessScope():
                jax.eval_shape(lambda given: model(given, **told), inputs)
        except jax.errors.UnexpectedTracerError:  # it holds on to what it computed as it was built
            model, _ = self.begin(whole=True)
            assign(model, values)
        return model

    def _trace(self) -> tuple[keras.Model, dict[int, Slice | StoredValue]] | None:
        """Returns a model and how its variables' values are made, by id; None where a build can't be traced."""
        built: list[keras.Model] = []

        def values() -> list[jax.Array]:
            built.append(self._built())
            return [variable.value for variable in built[0].variables]

        try:
            traced = jax.make_jaxpr(values)()
        except ConfigError:  # the builder wants values, or fails in any case
            return None
        (model,) = built
        if holds_traced(model):
            return None
        made = {id(variable): one for variable, one in zip(model.variables, slices(traced), strict=True)}
        weights = {id(variable) for variable in model.weights}
        for variable in model.variables:
            if id(variable) not in weights:  # a random generator's, which is no part of a run's state
                private.set_value(variable, made[id(variable)].now())
        return model, {key: one.source() for key, one in made.items()}

    def _hold(self) -> tuple[keras.Model, dict[int, Slice | StoredValue]]:
        """Returns a model and its variables' values, by id, whole on one device."""
        with host_memory():
            model = self._built()
        return model, {id(variable): HostValue(variable.value) for variable in model.weights}

    def _built(self) -> keras.Model:
        """Returns the built model, of values that are drawn."""
        told = builder.data_arguments(self._builder, self._config, self._data)
        if target.LAYOUTS in builder.parameters(self._builder):
            told[target.LAYOUTS] = {}
        private.reset_layer_names()  # layers without a name get the same names at every call
        # Keras draws the seeds of layers without one from Python's `random`, and a builder may draw from `np.random`.
        # `keras.utils.set_random_seed` would seed both too, and import TensorFlow.
        with seeded(self._seed), _under_policy(self._policy):
            model = builder.call(self._builder, self._config, finish=self._finished, keras=keras, **told)
        builder.check_kind(model, keras.Model, self._config, "Keras 3")
        if self._config.trainable is not None:
            tuning.train_alone(model, self._config.trainable)
        return model

    def traced(self, *, whole: bool = False) -> keras.Model:
        """Returns the model with variables that have a shape and no value: none is drawn or held.

        Args:
          whole: as `begin` takes it.

        Raises:
          ConfigError: as `build`.
        """
        made: list[keras.Model] = []
        try:
            if not whole:
                jax.eval_shape(lambda: made.append(self._built()))
        except ConfigError:  # a builder may want values
            made.clear()
        if not made or holds_traced(made[0]):
            return self.build()
        return made[0]

    def _finished(self, model: keras.Model) -> keras.Model:
        """Returns the builder's model with its variables made."""
        if isinstance(model, keras.Model) and not model.built:
            contract.check_steps(model, keras.Model, self._config)
            model(model_inputs(self._data, lambda spec: keras.KerasTensor((1, *spec.shape), spec.dtype)))
        return model


def model_inputs(data: DataSpec, make: Callable[[ArraySpec], T]) -> T | dict[str, T]:
    """Returns what a model is called with, of what is made of each input's spec: the one, or all by name."""
    return as_called({name: make(spec) for name, spec in data.inputs.items()})


@contextmanager
def _under_policy(name: str) -> Iterator[None]:
    """Makes layers that are built inside compute in a precision; a layer keeps it."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def check_model(model: keras.Model, config: RunConfig, data: DataSpec) -> None:
    """Checks what a model must be for any mesh.

    Args:
      model: built.
      config: the run's.
      data: what the engine is built for.

    Raises:
      ConfigError: inputs that it does not take; outputs that the task does not take; what only Keras's `fit` does, see
        `runner.model.contract`; padding that would count in what is kept; layers that run in TensorFlow.
    """
    paths = Names(model).variables
    builder.check_paths(paths, config.model)
    contract.check_cover(paths, model.weights, config.model)
    builder.check_trainable(model.trainable_variables, config.model)
    # JAX makes float32 of float64, but where a verification allows it.
    contract.check(model, private.all_layers(model), keras.Model, config.model, ("float32", "float64"))
    _check_layers(model, config)
    _check_outputs(_output_shapes(model, config, data), data)
    check_kept(model, config, data)


def _check_layers(model: keras.Model, config: RunConfig) -> None:
    """Refuses layers that no traced step can compute, that draw by no seed, or that would count padding."""
    for layer in private.all_layers(model):
        if isinstance(layer, _IN_TENSORFLOW):
            raise ConfigError(
                f"model._target_={config.model.target}: layer {layer.name} ({type(layer).__name__}) is one "
                "of those that run in TensorFlow alone, also in Keras 3 on JAX; leave it out of the model and make "
                "what it gives part of the dataset"
            )
        if isinstance(layer, keras.layers.AugMix):
            raise ConfigError(
                f"model._target_={config.model.target}: layer {layer.name} (AugMix) chooses by Python's "
                "own random numbers, once when a step is compiled, so that no seed repeats it; use RandAugment, or "
                "dataset.augment"
            )
        if (
            isinstance(layer, keras.layers.BatchNormalization)
            and layer.trainable
            and config.dataset.remainder == "pad"
        ):
            raise padding.invalid(f"the batch statistics of layer {layer.name}")


def _output_shapes(model: keras.Model, config: RunConfig, data: DataSpec) -> dict[str, tuple[int | None, ...]]:
    """Returns the shape of each output, by name where the model names them."""
    if private.is_functional(model) and len(data.inputs) == 1 and len(model.outputs) == 1:
        return {"": tuple(model.outputs[0].shape)}
    try:
        found = jax.eval_shape(
            lambda state, x: model.stateless_call(*state, x, **private.training_argument(model, training=False))[0],
            variable_shapes(model),
            model_inputs(data, lambda spec: jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype)),
        )
    except jax.errors.UnexpectedTracerError:
        raise
    except Exception as error:  # whatever a user's layers raise
        taken = ", ".join(f"{name} {list(spec.shape)} {spec.dtype}" for name, spec in data.inputs.items())
        raise ConfigError(
            f"model._target_={config.model.target}: called with {taken}, the model raised {reason(error)}"
        ) from error
    if isinstance(found, Mapping) and all(hasattr(output, "shape") for output in found.values()):
        return {str(name): tuple(output.shape) for name, output in found.items()}
    return {str(i): (None, *output.shape[1:]) for i, output in enumerate(jax.tree.leaves(found))}


def _check_outputs(shapes: Mapping[str, tuple[int | None, ...]], data: DataSpec) -> None:
    if len(shapes) == 1:
        data.task.check(next(iter(shapes.values())))
    else:
        data.task.check_named(shapes)


def reason(error: Exception) -> str:
    """Returns what an error says in one line, without the arguments that Keras lists after it."""
    said = str(error).partition("Arguments received by")[0]
    return in_one_line(f"{type(error).__name__}: {said}")


def variable_shapes(model: keras.Model) -> list[list[jax.ShapeDtypeStruct]]:
    """Returns the shapes of a model's trainable and other variables, as `stateless_call` takes them."""
    return [
        [jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype) for variable in each]
        for each in (model.trainable_variables, model.non_trainable_variables)
    ]


def assign(model: keras.Model, values: Mapping[str, Array]) -> None:
    """Sets a model's variables from whole host arrays by canonical path."""
    for path, variable in Names(model).variables.items():
        with host_memory():
            variable.assign(np.asarray(values[path]))
