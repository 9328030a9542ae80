"""What each layer of a tf_keras model takes and gives, for the plan."""

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
    """Returns what each layer gives for a batch, in the order of the calls.

    Args:
      model: built; a functional one that calls each layer once knows its shapes, another one is traced, on one device.
      batch: examples.
      inputs: specs of what the model takes, by name.
    """
    if is_functional(model) and all(_is_known(layer) for layer in model.layers):
        names = _input_names(model, inputs)
        return [output for layer in model.layers for output in _known_outputs(layer, batch, names)]
    layers = [
        layer
        for layer in model.submodules
        if isinstance(layer, tf_keras.layers.Layer) and not isinstance(layer, tf_keras.layers.InputLayer)
    ]
    noted = Outputs(layer_paths(model), lambda given: filter(tf.is_tensor, tf.nest.flatten(given)))

    def called(given: Any) -> Any:
        noted.begin(given)
        return model(given, training=False)

    calls = {id(layer): layer.call for layer in layers}
    try:
        for layer in layers:
            layer.call = noted.recorded(layer, tf.autograph.experimental.do_not_convert(calls[id(layer)]))
        specs = {name: tf.TensorSpec((batch, *spec.shape), spec.dtype) for name, spec in inputs.items()}
        tf.function(called).get_concrete_function(as_called(specs))
    finally:
        for layer in layers:
            layer.call = calls[id(layer)]
    return noted.found


def _is_known(layer: tf_keras.layers.Layer) -> bool:
    """Tells whether a layer of a functional model is one to the plan, and knows its shapes: it is called once.

    One that this package puts together of others, as a block, is told by these.
    """
    composed = type(layer).__module__.startswith("runner.") and any(
        isinstance(each, tf_keras.layers.Layer) for each in layer.submodules
    )
    return is_called_once(layer) and not is_functional(layer) and not composed


def _input_names(model: tf_keras.Model, inputs: Mapping[str, ArraySpec]) -> dict[int, str]:
    """Returns id of input layer -> what stands for it in the plan."""
    layers = [layer for layer in model.layers if isinstance(layer, tf_keras.layers.InputLayer)]
    several = len(inputs) > 1
    return {id(layer): f"{INPUTS}/{layer.name}" if several else INPUTS for layer in layers}


def _known_outputs(layer: tf_keras.layers.Layer, batch: int, names: Mapping[int, str]) -> Iterator[LayerOutput]:
    def shape(tensor: Any) -> tuple[int, ...]:
        return tuple(batch if dim is None else dim for dim in tensor.shape)

    if id(layer) in names:
        return
    inputs = tuple(
        LayerInput(names.get(id(giver(each)), layer_path(giver(each).name)), shape(each))
        for each in tf.nest.flatten(layer.input)
    )
    for output in tf.nest.flatten(layer.output):
        yield LayerOutput(layer_path(layer.name), type(layer).__name__, shape(output), output.dtype.name, inputs)
