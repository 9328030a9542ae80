"""Inputs and outputs of each layer of a tf_keras model, for the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from runner.data.base import ArraySpec
from runner.engine.base import LayerOutput, as_called
from runner.engine.dtensor.adapters.paths import layer_paths
from runner.engine.layer_notes import Outputs


def layer_outputs(model: tf_keras.Model, batch: int, inputs: Mapping[str, ArraySpec]) -> list[LayerOutput]:
    """Returns each layer's outputs for a batch, in the order of the calls, by tracing one.

    Args:
      model: built, on one device.
      batch: number of examples.
      inputs: specs of the model's inputs, by name.
    """
    layers = []
    for layer in model.submodules:
        is_layer = isinstance(layer, tf_keras.layers.Layer)
        if is_layer and not isinstance(layer, tf_keras.layers.InputLayer):
            layers.append(layer)
    recorder = Outputs(layer_paths(model), lambda structure: filter(tf.is_tensor, tf.nest.flatten(structure)))

    def call(model_inputs: Any) -> Any:
        recorder.begin(model_inputs)
        return model(model_inputs, training=False)

    calls = {id(layer): layer.call for layer in layers}
    try:
        for layer in layers:
            layer.call = recorder.recorded(layer, calls[id(layer)])
        specs = {name: tf.TensorSpec((batch, *spec.shape), spec.dtype) for name, spec in inputs.items()}
        tf.function(call, autograph=False).get_concrete_function(as_called(specs))
    finally:
        for layer in layers:
            layer.call = calls[id(layer)]
    return recorder.found
