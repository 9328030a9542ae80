"""Builds and checks Keras 3 models for the engine `jax`; what a builder returns depends on the seed alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np

from runner.arrays import of as arrays_of
from runner.config.import_path import parameters, raised
from runner.config.schema import ModelConfig, OptimizerConfig
from runner.data.base import WEIGHT, Array, ArraySpec, Batch
from runner.engine.base import LayerOutput, as_called
from runner.engine.jax import private
from runner.engine.jax.names import Names
from runner.engine.jax.precision import kind_of
from runner.engine.jax.shards import FirstValue, host_memory
from runner.engine.layer_notes import Outputs
from runner.engine.mappings import keys_by_id, map_values, subset, without
from runner.engine.optim import keras_classes
from runner.errors import ConfigError, invalid
from runner.model import builder, contract, padding, preprocessing, stored, target
from runner.model.hub import inputs as hub_inputs
from runner.model.own_modules import seeded
from runner.model.stored import StoredValue
from runner.task.base import DataSpec
from runner.task.compiled import Compiled

T = TypeVar("T")

Shape = tuple[int | None, ...]
Values = list[jax.Array]

# Layers that Keras 3 computes with TensorFlow's operations, whichever its backend.
_IN_TENSORFLOW = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)
# Packages whose initializers have a seed of their own.
_LIBRARIES = ("keras.", "keras_hub.", "runner.")


class Keras3Factory:
    """Calls a config's builder with Keras 3. Weights and dropout seeds depend on the config's seed alone."""

    def __init__(self, config: ModelConfig, data: DataSpec, seed: int, precision: str = "float32") -> None:
        self._config = config
        self._data = data
        self._seed = seed
        self._policy = builder.POLICIES[precision]
        self._builder = target.load(config.target)

    def build(self) -> keras.Model:
        """Returns the built model of stock Keras on one device; raises ConfigError if the builder is wrong."""
        model = self.call_builder()
        stored_values = stored.attached(model)
        for variable in model.weights:
            if id(variable) in stored_values:
                variable.assign(stored_values[id(variable)].read((slice(None),) * len(variable.shape)))
        return model

    def build_for_mesh(self) -> tuple[keras.Model, dict[str, StoredValue]]:
        """Returns the model without values, and its variables' initial values, which are not drawn yet.

        A model whose builder sets values, or whose initializers draw from a state that they share, is built as stock
        Keras does, in the host's memory; each value is released when it is placed.
        """
        model = self._build_deferred()
        if model is None:
            with host_memory():
                model = self.call_builder()
        stored_values = stored.attached(model)
        initial: dict[str, StoredValue] = {}
        for path, variable in Names(model).variables.items():
            first = FirstValue(variable)
            initial[path] = stored_values.get(id(variable), first)
        return model, initial

    def _build_deferred(self) -> keras.Model | None:
        """Returns a model whose variables have initializers in place of values; None: it can't be.

        Only the states of its random generators have values: they are not part of a run's state, see
        `runner.engine.jax.randomness`.
        """
        scope = keras.StatelessScope(initialize_variables=False)
        try:
            with private.kept_seed_generator(), scope:
                model = self.call_builder()
        except ConfigError:
            # Such as a variable that is made of an array. If the builder is wrong in itself, the other build raises
            # the same error.
            return None
        finally:
            created = private.take_uninitialized()
        # The scope has noted the values that the builder sets, and would lose them.
        if scope.state_mapping or not all(map(_draws_alone, created)):
            return None
        # A generator that the user's module made has its state.
        lacking = set(map(id, created)) - set(map(id, model.weights))
        for variable in model.variables:
            if id(variable) in lacking:
                private.initialize(variable)
        return model

    def call_builder(self) -> keras.Model:
        """Returns the built and checked model."""
        arguments = builder.data_arguments(self._builder, self._config, self._data)
        if target.LAYOUTS in parameters(self._builder):
            # Layouts by variable are DTensor's; here the sharding of the step's state says all.
            arguments[target.LAYOUTS] = {}
        # Layers without a name get the same names at every call.
        private.reset_layer_names()
        # Keras draws the seeds of layers without one from Python's `random`, and a builder may draw from `np.random`.
        # `keras.utils.set_random_seed` would seed both too, and import TensorFlow.
        with seeded(self._seed), under_policy(self._policy):
            model = builder.call(self._builder, self._config, finish=self._finished, keras=keras, **arguments)
        builder.check_kind(model, keras.Model, self._config, "Keras 3")
        model = builder.with_named_outputs(model, keras, self._data)
        preprocessing.settle(self._data.task, [model])
        if self._config.trainable is not None:
            freeze_others(model, self._config.trainable)
        return model

    def _finished(self, model: keras.Model) -> keras.Model:
        """Returns the builder's model with its variables; the task takes what the first model was compiled with."""
        task = self._data.task
        if not isinstance(task, Compiled) or not isinstance(model, keras.Model):
            return self._with_variables(model)
        compiled = private.take_compile(model, self._config.target)
        model = self._with_variables(model)
        if task.compile is not None:
            return model
        training = private.training_argument(model, training=False)
        order: list[str] = []

        def results(state: list[list[jax.Array]], batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            outputs = model.stateless_call(*state, task.inputs(arrays_of(jnp), batch), **training)[0]
            task.take(compiled, keras, outputs, getattr(model, "output_names", None) or ())
            found: dict[str, jax.Array] = task.computed(outputs, batch)[1]
            order.extend(found)
            return found

        specs = {**self._data.arrays, WEIGHT: ArraySpec((), "float32")}
        # Two examples: of one, Keras would take the dim of the batch for one of a single number.
        shapes = map_values(lambda spec: jax.ShapeDtypeStruct((2, *spec.shape), spec.dtype), specs)
        # Keras makes the metrics, and their variables, when it first sees outputs.
        with keras.StatelessScope():
            found = jax.eval_shape(results, variable_shapes(model), shapes)
        # JAX sorts the names.
        task.settle(subset(found, order))
        return model

    def _with_variables(self, model: keras.Model) -> keras.Model:
        """Returns the builder's model with its variables, which a symbolic call makes if need be."""
        if not isinstance(model, keras.Model):
            return model
        if hub_inputs.is_plain(model):
            return hub_inputs.as_model(keras, model, self._config, self._data.inputs)
        has_own_call = not private.is_functional(model) and len(self._data.inputs) > 1
        if model.built and not has_own_call:
            return model
        contract.check_steps(model, keras.Model, self._config)
        try:
            model(model_inputs(self._data, lambda spec: keras.KerasTensor((1, *spec.shape), spec.dtype)))
        except Exception:
            # Its `call` may unpack its argument, as `a, b = inputs`, which of arrays by name gives their names.
            taking_tuple = self._taking_tuple(model) if has_own_call else None
            if taking_tuple is None:
                raise
            return taking_tuple
        return model

    def _taking_tuple(self, model: keras.Model) -> keras.Model | None:
        """Returns a model of arrays by name that calls another one with a tuple of them; None: that fails too."""
        inputs = {}
        for name, spec in self._data.inputs.items():
            inputs[name] = keras.Input(spec.shape, dtype=spec.dtype, name=name)
        try:
            outputs = model(tuple(inputs.values()))
        except Exception:  # of a user's code
            return None
        return keras.Model(inputs, outputs, name=model.name)


def input_shapes(data: DataSpec, batch: int) -> object:
    """Returns the shapes of a model's argument for a batch."""
    return model_inputs(data, lambda spec: jax.ShapeDtypeStruct((batch, *spec.shape), spec.dtype))


def model_inputs(data: DataSpec, make: Callable[[ArraySpec], T]) -> T | dict[str, T]:
    """Returns a model's argument, the only input or all by name. Each input is `make` of its spec."""
    return as_called(map_values(make, data.inputs))


def _draws_alone(variable: keras.Variable) -> bool:
    """Returns whether a variable's initializer draws the same numbers at any time.

    A user's may draw from `np.random`, whose state builder and initializers share.
    """
    initializer = private.initializer_of(variable)
    if isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator):
        return False
    return str(getattr(initializer, "__module__", "")).startswith(_LIBRARIES)


@contextmanager
def under_policy(name: str) -> Iterator[None]:
    """Sets Keras's dtype policy for layers that are built inside; a layer keeps it."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def check_model(model: keras.Model, config: ModelConfig, data: DataSpec, *, pads: bool) -> None:
    """Raises ConfigError for what a model must not do on any mesh; see also `runner.model.contract`."""
    paths = Names(model).variables
    builder.check_paths(paths, config)
    contract.check_cover(paths, model.weights, config)
    builder.check_trainable(model.trainable_variables, config)
    # JAX makes float32 of float64.
    dtypes = ("float32", "float64")
    contract.check(
        model, private.all_layers(model), keras.Model, config, dtypes, data.task.masked_input, data.task.of_model
    )
    _check_layers(model, config, pads=pads)
    data.task.pads = pads
    data.task.check(_output_shapes(model, config, data))


def _check_layers(model: keras.Model, config: ModelConfig, *, pads: bool) -> None:
    for layer in private.all_layers(model):
        if isinstance(layer, _IN_TENSORFLOW):
            raise ConfigError(
                f"model._target_={config.target}: layer {layer.name} ({type(layer).__name__}) runs in TensorFlow "
                "only, also in Keras 3 on JAX; remove it from the model, and compute its output in the dataset"
            )
        if isinstance(layer, keras.layers.AugMix):
            raise ConfigError(
                f"model._target_={config.target}: layer {layer.name} (AugMix) draws from Python's random "
                "numbers once, when a step is compiled, so no seed reproduces it; use RandAugment or dataset.augment"
            )
        is_batch_norm = isinstance(layer, keras.layers.BatchNormalization)
        if is_batch_norm and layer.trainable and pads:
            raise padding.invalid(f"the batch statistics of layer {layer.name}")


def check_padding(
    model: keras.Model,
    microbatches: int,
    data: DataSpec,
    first: Callable[[], Mapping[str, Array]],
) -> None:
    """Raises ConfigError if the padding of a batch would count in variables, losses or other examples.

    A call is computed only if something is kept, or if a user's code may mix examples. `first` returns the variables'
    initial values by path; it gathers them from all processes, so it is called only for such a call.
    """
    layers = [model, *private.all_layers(model)]
    changed = _changed(model, data)
    if changed and microbatches > 1:
        # Some may be padding only, and would change the variable too.
        raise padding.invalid(f"variable {changed[0]}, which a training call of the model changes in each microbatch")
    if changed or contract.has_own_code(layers) or contract.has_activity_loss(layers):
        padding.check(_call(model, changed, first()), data.inputs)


def _values(variables: Sequence[keras.Variable]) -> Values:
    return [variable.value for variable in variables]


def _changed(model: keras.Model, data: DataSpec) -> list[str]:
    """Returns the paths of the variables without gradients that a training call changes, from a trace."""
    # States of random generators have no path.
    paths = keys_by_id(without(Names(model).variables, model.trainable_variables))
    if not paths:
        return []
    others = model.non_trainable_variables
    changed: list[str] = []

    def call(trainable: Values, non_trainable: Values, inputs: object) -> None:
        _, new = model.stateless_call(
            trainable, non_trainable, inputs, **private.training_argument(model, training=True)
        )
        for variable, old_value, new_value in zip(others, non_trainable, new, strict=True):
            if new_value is not old_value and id(variable) in paths:
                changed.append(paths[id(variable)])

    # Two examples: a layer that computes over the batch may do otherwise with one alone.
    jax.eval_shape(call, _values(model.trainable_variables), _values(others), input_shapes(data, 2))
    return changed


def _call(model: keras.Model, kept: Sequence[str], values: Mapping[str, Array]) -> padding.Call:
    """Returns the training call that `runner.model.padding` tries; it returns the kept variables' new values too."""
    others = model.non_trainable_variables
    variables = Names(model).variables
    # A random generator's state has no path: it keeps its own value.
    values_by_id = {id(variable): values[path] for path, variable in variables.items()}

    def values_of(group: Sequence[keras.Variable]) -> Values:
        return [values_by_id.get(id(variable), variable.value) for variable in group]

    trainable_values = values_of(model.trainable_variables)
    other_values = values_of(others)
    other_ids = list(map(id, others))
    kept_places = [other_ids.index(id(variables[path])) for path in kept]

    @jax.jit  # type: ignore[untyped-decorator]
    def train(trainable: Values, non_trainable: Values, inputs: object) -> tuple[Values, Values]:
        private.forget_added_losses(model)
        outputs, new, losses = model.stateless_call(
            trainable, non_trainable, inputs, return_losses=True, **private.training_argument(model, training=True)
        )
        return [*(new[place] for place in kept_places), *losses], jax.tree.leaves(outputs)

    def call(batch: Batch) -> tuple[list[Array], list[Array]]:
        found = train(trainable_values, other_values, as_called(dict(batch)))
        arrays: tuple[list[Array], list[Array]] = jax.tree.map(np.asarray, found)
        return arrays

    return call


def _output_shapes(model: keras.Model, config: ModelConfig, data: DataSpec) -> dict[str, Shape]:
    """Returns the shape of each output, by name or else by number."""
    if private.is_functional(model) and len(data.inputs) == 1 and len(model.outputs) == 1:
        return {"": tuple(model.outputs[0].shape)}
    training = private.training_argument(model, training=False)
    try:
        outputs = jax.eval_shape(
            lambda state, x: model.stateless_call(*state, x, **training)[0],
            variable_shapes(model),
            input_shapes(data, 1),
        )
    except Exception as error:  # A user's layers may raise anything.
        inputs = ", ".join(f"{name} {list(spec.shape)} {spec.dtype}" for name, spec in data.inputs.items())
        raise ConfigError(
            f"model._target_={config.target}: called with {inputs}, the model raised {raised(error)}"
        ) from error
    if isinstance(outputs, Mapping) and all(hasattr(output, "shape") for output in outputs.values()):
        return {str(name): tuple(output.shape) for name, output in outputs.items()}
    shapes: dict[str, Shape] = {}
    for number, output in enumerate(jax.tree.leaves(outputs)):
        shapes[str(number)] = (None, *output.shape[1:])
    return shapes


def variable_shapes(model: keras.Model) -> list[list[jax.ShapeDtypeStruct]]:
    """Returns the shapes of a model's variables as `stateless_call` takes them."""
    return [list(map(kind_of, model.trainable_variables)), list(map(kind_of, model.non_trainable_variables))]


def set_values(variables: Mapping[str, keras.Variable], values: Mapping[str, Array]) -> None:
    """Sets variables by canonical path to copies of whole arrays, in the host's memory."""
    with host_memory():
        for path, variable in variables.items():
            private.set_value(variable, jnp.array(values[path], variable.dtype))


def freeze_others(model: keras.Model, patterns: Sequence[str]) -> None:
    """Freezes variables that no pattern matches whole; a layer with no trained variable left gets `trainable=False`.

    A frozen batch normalization then computes with its moving averages, as Keras's does. One without variables to
    train is frozen unless a pattern matches its averages.
    """
    paths = keys_by_id(Names(model).variables)
    trainable = subset(paths, map(id, model.trainable_variables))
    matched: set[int] = set()
    for place, pattern in enumerate(patterns):
        pattern_ids = [key for key, path in paths.items() if re.fullmatch(pattern, path)]
        # A pattern may match statistics too, but by itself they are not trained.
        if trainable.keys().isdisjoint(pattern_ids):
            known = list(trainable.values())
            some = known[:: max(1, len(known) // 4)][:4]
            problem = f"must match a whole variable path, such as {', '.join(some)}"
            fix = "list them with python -m runner.plan"
            raise invalid(f"model.trainable[{place}]", pattern, problem=problem, fix=fix)
        matched.update(pattern_ids)
    # Whole layers first: `trainable=False` also changes what a layer such as batch normalization computes.
    for layer in private.all_layers(model):
        variables = [variable for variable in layer.weights if id(variable) in trainable] or layer.weights
        if variables and matched.isdisjoint(map(id, variables)):
            layer.trainable = False
    for variable in model.trainable_variables:
        if id(variable) not in matched:
            variable.trainable = False


def outputs_of(model: keras.Model, inputs: object) -> list[LayerOutput]:
    """Returns each layer's output by tracing one call."""
    notes = Outputs(
        Names(model).layers, lambda tree: [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]
    )
    training = private.training_argument(model, training=False)

    def call(state: list[list[jax.Array]], inputs: jax.Array | dict[str, jax.Array]) -> object:
        notes.begin(inputs)
        return model.stateless_call(*state, inputs, **training)

    with private.calls_replaced(private.all_layers(model), notes.recorded):
        jax.eval_shape(call, variable_shapes(model), inputs)
    return notes.found


def take_compile(config: ModelConfig, optimizer: OptimizerConfig, seed: int, data: DataSpec) -> OptimizerConfig:
    """Builds a model for a task that takes its `compile`; returns its optimizer, if the config leaves the default."""
    assert isinstance(data.task, Compiled)
    if data.task.compile is None:
        Keras3Factory(config, data, seed).build_for_mesh()
        assert data.task.compile is not None
    if optimizer != keras_classes.DEFAULT:
        return optimizer
    return keras_classes.config_of(data.task.compile.optimizer)
