"""Outputs of each layer of a Keras 3 model, for the plan."""

from __future__ import annotations

from typing import Any

import jax
import keras

from runner.engine.base import LayerOutput
from runner.engine.jax import private
from runner.engine.jax.adapter import model_inputs, variable_shapes
from runner.engine.jax.names import Names
from runner.engine.layer_notes import Outputs
from runner.task.base import DataSpec


def layer_outputs(model: keras.Model, batch: int, data: DataSpec) -> list[LayerOutput]:
    """Returns each layer's output for a batch by tracing one call."""
    return outputs_of(model, model_inputs(data, lambda spec: jax.ShapeDtypeStruct((batch, *spec.shape), spec.dtype)))


def outputs_of(model: keras.Model, inputs: Any) -> list[LayerOutput]:
    """Returns each layer's output by tracing one call."""
    notes = Outputs(Names(model).layers, lambda tree: filter(_is_tensor, jax.tree.leaves(tree)))
    training = private.training_argument(model, training=False)

    def call(state: list[list[jax.Array]], inputs: jax.Array | dict[str, jax.Array]) -> object:
        notes.begin(inputs)
        return model.stateless_call(*state, inputs, **training)

    with private.calls_replaced(private.all_layers(model), notes.recorded):
        jax.eval_shape(call, variable_shapes(model), inputs)
    return notes.found


def _is_tensor(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
