"""tf_keras models on one device and on a mesh."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

from runner.config.import_path import parameters, raised
from runner.config.schema import ModelConfig
from runner.data.base import Array, Batch
from runner.engine.base import LayerOutput, PlainModel, as_called
from runner.engine.dtensor import private
from runner.engine.dtensor.adapters.paths import layer_paths, named_variables
from runner.engine.dtensor.arrays import host_values
from runner.engine.dtensor.layers import adopt, check_taken, whole_variables
from runner.engine.dtensor.operations import masks_from_scope
from runner.engine.dtensor.placing import place
from runner.engine.layer_notes import Outputs
from runner.engine.mappings import map_values, without
from runner.engine.registry import TF_KERAS
from runner.errors import ConfigError
from runner.model import contract, padding, preprocessing, scope, target
from runner.model.builder import call as build_model
from runner.model.builder import check_kind, check_paths, data_arguments, with_named_outputs
from runner.task.base import DataSpec


class KerasAdapter:
    """Calls a config's builder for a plain model and for one on a mesh, from the same seed."""

    def __init__(self, config: ModelConfig, data: DataSpec, seed: int) -> None:
        self._config = config
        self._data = data
        self._seed = seed
        self._builder = target.load(config.target)
        self._builder_places = target.LAYOUTS in parameters(self._builder)

    def plain(self) -> tf_keras.Model:
        """Returns the stock model on one device; its initial weights depend on the seed only."""
        model = self._call({})
        if not model.built:
            contract.check_steps(model, tf_keras.Model, self._config)
            inputs = {}
            for name, spec in self._data.inputs.items():
                inputs[name] = tf_keras.Input(spec.shape, dtype=spec.dtype)
            try:
                private.build_by_call(model, as_called(inputs))
            except Exception as error:  # of a user's code
                raise ConfigError(
                    f"model._target_={self._config.target}: called with {', '.join(inputs)}, the model raised "
                    f"{raised(error)}; correct it, or set engine=jax, which also calls models that unpack a tuple"
                ) from error
        return model

    def on_mesh(
        self, plain: tf_keras.Model, mesh: dtensor.Mesh, layouts: Mapping[str, dtensor.Layout]
    ) -> tf_keras.Model:
        """Returns the model with every variable under its layout; the plain one unless its builder places."""
        if self._builder_places:
            model = self._call(layouts)
        else:
            model = plain
            place(model, self.variables(model), layouts, mesh)
        adopt(model)
        return model

    def variables(self, model: tf_keras.Model) -> dict[str, tf.Variable]:
        """Returns canonical path -> variable."""
        return named_variables(model)

    def check(self, model: tf_keras.Model, *, pads: bool) -> None:
        """Rejects outputs that the task can't use, what no engine honors, and padding in batch statistics."""
        contract.check(model, list(model.submodules), tf_keras.Model, self._config)
        check_taken(model)
        shapes = _output_shapes(model)
        if shapes is not None:
            self._data.task.check(shapes)
        paths = self.variables(model)
        check_paths(paths, self._config)
        for path, variable in paths.items():
            if variable.constraint is not None:
                raise ConfigError(f"engine=keras_dtensor: no constraint is applied to variable {path}; set engine=jax")
        contract.check_cover(paths, model.weights, self._config, "tf_keras")
        if pads:
            _check_padding(model, paths, self._data, self._seed)

    def whole(self, model: tf_keras.Model) -> set[str]:
        """Returns the paths of variables that layers need whole, however they are stored."""
        whole_ids: set[int] = set()
        for layer in model.submodules:
            whole_ids.update(map(id, whole_variables(layer)))
        return {path for path, variable in self.variables(model).items() if id(variable) in whole_ids}

    def layer_outputs(self, batch: int) -> list[LayerOutput]:
        """Returns every layer's output for a batch."""
        # A model for this alone: the calls of its layers are replaced for good.
        model = self.plain()
        recorder = Outputs(layer_paths(model), lambda structure: filter(tf.is_tensor, tf.nest.flatten(structure)))
        for layer in model.submodules:
            is_layer = isinstance(layer, tf_keras.layers.Layer)
            if is_layer and not isinstance(layer, tf_keras.layers.InputLayer):
                layer.call = recorder.recorded(layer, layer.call)

        def call(inputs: tf.Tensor) -> tf.Tensor:
            recorder.begin(inputs)
            return model(inputs, training=False)

        specs = {name: tf.TensorSpec((batch, *spec.shape), spec.dtype) for name, spec in self._data.inputs.items()}
        tf.function(call, autograph=False).get_concrete_function(as_called(specs))
        return recorder.found

    def exported(self, values: Mapping[str, Array]) -> PlainModel:
        """Returns a model of tf_keras's own layers with these weights."""
        model = self.plain()
        for path, variable in self.variables(model).items():
            variable.assign(values[path])
        return PlainModel(model, model, TF_KERAS)

    def _call(self, layouts: Mapping[str, dtensor.Layout]) -> tf_keras.Model:
        # Unnamed layers get the same names at every call, and their weights the same values.
        tf_keras.backend.reset_uids()
        tf_keras.utils.set_random_seed(self._seed)
        arguments = data_arguments(self._builder, self._config, self._data)
        if self._builder_places:
            arguments[target.LAYOUTS] = layouts
        # Layers are called without AutoGraph, as in the step.
        build = tf.autograph.experimental.do_not_convert(build_model)
        model = build(self._builder, self._config, keras=tf_keras, **arguments)
        check_kind(model, tf_keras.Model, self._config, "tf_keras")
        model = with_named_outputs(model, tf_keras, self._data)
        preprocessing.settle(self._data.task, [model])
        return model


def _output_shapes(model: tf_keras.Model) -> dict[str, tuple[int | None, ...]] | None:
    """Returns the shapes of a model's outputs by name or number; None if the model does not know them."""
    shape = getattr(model, "output_shape", None)
    if isinstance(shape, Mapping):
        return {str(name): tuple(one_shape) for name, one_shape in shape.items()}
    if not isinstance(shape, list | tuple):
        return None
    # A tuple of tuples has the shapes of several outputs, a tuple of sizes that of one.
    if isinstance(shape, tuple) and not any(isinstance(size, tuple) for size in shape):
        return {"outputs": shape}
    return {str(number): tuple(one_shape) for number, one_shape in enumerate(shape)}


def _check_padding(model: tf.Module, variables: Mapping[str, tf.Variable], data: DataSpec, seed: int) -> None:
    """Rejects padding that counts in a variable, in a loss or in other rows.

    A model of tf_keras's own layers is not called, unless it has variables without gradients.
    """
    # A user's code may be in the model's own `call`, so the model is one of the layers.
    layers = [model, *model.submodules]
    for layer in layers:
        if isinstance(layer, tf_keras.layers.BatchNormalization) and layer.trainable:
            raise padding.invalid(f"the batch statistics of layer {layer.name}")
    untrained = without(variables, model.trainable_variables)
    if not (untrained or contract.has_own_code(layers) or contract.has_activity_loss(layers)):
        return
    before = host_values(variables)

    def call(batch: Batch) -> tuple[list[Array], list[Array]]:
        training = scope.Scope(seed, tf.constant(0))
        try:
            with scope.enter(training), masks_from_scope(model):
                outputs = model(as_called(map_values(tf.constant, batch)), training=True)
                losses = [loss.numpy() for loss in getattr(model, "losses", ())]
                of_batch = [*host_values(untrained).values(), *losses]
                return of_batch, [output.numpy() for output in tf.nest.flatten(outputs)]
        finally:
            for path, variable in variables.items():
                variable.assign(before[path])

    padding.check(call, data.inputs)
