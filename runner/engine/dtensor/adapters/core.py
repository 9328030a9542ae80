"""TensorFlow Core on a mesh: tf.Modules of DVariables, without Keras."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

from runner.config.schema import ModelConfig
from runner.data.base import Array
from runner.engine.base import INPUTS, LayerInput, LayerOutput, PlainModel
from runner.engine.dtensor.adapters.paths import named_variables
from runner.engine.registry import TF_KERAS
from runner.model import target
from runner.model.builder import call as build_model
from runner.model.builder import data_arguments
from runner.task.base import DataSpec


class CoreAdapter:
    """Calls the builder of `model=mlp_core` without a Keras, on one device or on a mesh."""

    def __init__(self, config: ModelConfig, data: DataSpec, seed: int) -> None:
        self._config = config
        self._data = data
        self._seed = seed
        self._builder = target.load(config.target)

    def plain(self) -> tf.Module:
        """Returns the module on one device."""
        return self._build(None, {})

    def on_mesh(self, plain: tf.Module, mesh: dtensor.Mesh, layouts: Mapping[str, dtensor.Layout]) -> tf.Module:
        """Returns the module with every variable created under its layout."""
        # The layouts name the mesh, and a variable can't change its layout: the builder makes a second module.
        del plain, mesh
        return self._build(None, layouts)

    def variables(self, model: tf.Module) -> dict[str, tf.Variable]:
        """Returns canonical path, layer name and attribute -> variable."""
        variables = {}
        for layer in model.layers:
            for name, value in vars(layer).items():
                if isinstance(value, tf.Variable):
                    variables[f"{layer.name}/{name}"] = value
        return variables

    def check(self, model: tf.Module, *, pads: bool) -> None:
        """Rejects outputs that the task can't use."""
        del model, pads
        # A batch of one example is enough for the shape of the outputs.
        self._data.task.check({"outputs": self.layer_outputs(1)[-1].shape})

    def whole(self, model: tf.Module) -> set[str]:
        """Returns nothing: a dense layer computes with shards of its kernel."""
        del model
        return set()

    def layer_outputs(self, batch: int) -> list[LayerOutput]:
        """Returns every layer's output for a batch; each is a dense layer on the one before."""
        outputs: list[LayerOutput] = []
        for layer in self.plain().layers:
            input_size, output_size = map(int, layer.kernel.shape)
            # Each layer reads the one before it, and the first one the model's input.
            provider = INPUTS
            if outputs:
                provider = outputs[-1].layer
            layer_input = LayerInput(provider, (batch, input_size))
            kind = type(layer).__name__
            outputs.append(LayerOutput(layer.name, kind, (batch, output_size), "float32", (layer_input,)))
        return outputs

    def exported(self, values: Mapping[str, Array]) -> PlainModel:
        """Returns the module, and the same network of tf_keras's layers, with these weights."""
        model = self.plain()
        keras_model = self._build(tf_keras, {})
        for variables in (self.variables(model), named_variables(keras_model)):
            for path, variable in variables.items():
                variable.assign(values[path])
        return PlainModel(model, keras_model, TF_KERAS)

    def _build(self, keras: ModuleType | None, layouts: Mapping[str, dtensor.Layout]) -> tf.Module:
        return build_model(
            self._builder,
            self._config,
            keras=keras,
            **data_arguments(self._builder, self._config, self._data),
            layouts=layouts,
            seed=self._seed,
        )
