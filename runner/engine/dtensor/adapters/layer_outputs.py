"""Inputs and outputs of each layer of a tf_keras model, for the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from runner.data.base import ArraySpec
from runner.engine.base import INPUTS, LayerInput, LayerOutput, as_called
from runner.engine.dtensor.adapters.paths import layer_paths
from runner.engine.dtensor.private import giver, is_called_once, is_functional
from runner.engine.layer_notes import Outputs, layer_path


def layer_outputs(model: tf_keras.Model, batch: int, inputs: Mapping[str, ArraySpec]) -> list[LayerOutput]:
    """Returns each layer's outputs for a batch, in the order of the calls.

    Args:
      model: built. A functional one that calls each layer once knows its shapes; another one is traced, on one device.
      batch: number of examples.
      inputs: specs of the model's inputs, by name.
    """
    if is_functional(model) and all(map(_is_known, model.layers)):
        names = _input_names(model, inputs)
        outputs: list[LayerOutput] = []
        for layer in model.layers:
            outputs += _known_outputs(layer, batch, names)
        return outputs
    return _traced_outputs(model, batch, inputs)


def _traced_outputs(model: tf_keras.Model, batch: int, inputs: Mapping[str, ArraySpec]) -> list[LayerOutput]:
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


def _is_known(layer: tf_keras.layers.Layer) -> bool:
    """Returns whether the plan takes a functional model's layer as a single one.

    Such a layer has one call, and knows its shapes.

    One that this package composes of others, such as a block, is listed by these.
    """
    is_own = type(layer).__module__.startswith("runner.")
    is_composed = is_own and any(isinstance(module, tf_keras.layers.Layer) for module in layer.submodules)
    return is_called_once(layer) and not is_functional(layer) and not is_composed


def _input_names(model: tf_keras.Model, inputs: Mapping[str, ArraySpec]) -> dict[int, str]:
    """Returns id of input layer -> its name in the plan."""
    names = {}
    for layer in model.layers:
        if isinstance(layer, tf_keras.layers.InputLayer):
            name = INPUTS
            if len(inputs) > 1:
                name = f"{INPUTS}/{layer.name}"
            names[id(layer)] = name
    return names


def _known_outputs(layer: tf_keras.layers.Layer, batch: int, names: Mapping[int, str]) -> Iterator[LayerOutput]:
    """Yields the outputs of a functional model's layer.

    Args:
      layer: has one call.
      batch: number of examples.
      names: the names of the input layers, by id.
    """
    if id(layer) in names:
        return
    inputs = []
    for tensor in tf.nest.flatten(layer.input):
        provider = giver(tensor)
        name = names.get(id(provider), layer_path(provider.name))
        inputs.append(LayerInput(name, _shape(tensor, batch)))
    for tensor in tf.nest.flatten(layer.output):
        path = layer_path(layer.name)
        yield LayerOutput(path, type(layer).__name__, _shape(tensor, batch), tensor.dtype.name, tuple(inputs))


def _shape(tensor: Any, batch: int) -> tuple[int, ...]:
    """Returns a symbolic tensor's shape, its unknown first dim filled in."""
    return tuple(batch if dim is None else dim for dim in tensor.shape)
