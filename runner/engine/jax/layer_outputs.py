"""What each layer of a Keras 3 model gives, for the plan."""

from __future__ import annotations

import jax
import keras

from runner.engine.base import LayerOutput
from runner.engine.jax import private
from runner.engine.jax.adapter import model_inputs, variable_shapes
from runner.engine.jax.names import Names
from runner.engine.layer_notes import Outputs
from runner.task.base import DataSpec


def layer_outputs(model: keras.Model, batch: int, data: DataSpec) -> list[LayerOutput]:
    """Returns what each layer gives for a batch, in the order of the calls, by tracing one call.

    Args:
      model: built.
      batch: examples.
      data: specs of the inputs.
    """
    noted = Outputs(Names(model).layers, lambda given: filter(_is_tensor, jax.tree.leaves(given)))

    def called(state: list[list[jax.Array]], inputs: jax.Array | dict[str, jax.Array]) -> object:
        noted.begin(inputs)
        return model.stateless_call(*state, inputs, **private.training_argument(model, training=False))

    inputs = model_inputs(data, lambda spec: jax.ShapeDtypeStruct((batch, *spec.shape), spec.dtype))
    with private.calls_replaced(private.all_layers(model), noted.recorded):
        jax.eval_shape(called, variable_shapes(model), inputs)
    return noted.found


def _is_tensor(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
