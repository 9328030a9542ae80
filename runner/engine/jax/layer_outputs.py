"""What each layer of a Keras 3 model gives, for the plan."""

from __future__ import annotations

from collections.abc import Callable

import jax
import keras

from runner.engine.base import DataSpec, LayerOutput
from runner.engine.jax import private
from runner.engine.jax.adapter import model_inputs, variable_shapes
from runner.engine.jax.names import Names, layer_path
from runner.engine.layer_notes import Outputs


def layer_outputs(model: keras.Model, batch: int, data: DataSpec) -> list[LayerOutput]:
    """Returns what each layer gives for a batch, in the order of the calls, by tracing one call.

    Args:
      model: built.
      batch: examples.
      data: specs of the inputs.
    """
    names, noted = Names(model).layers, list[Outputs]()

    def recorded(layer: keras.Layer, call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            outputs = call(*args, **kwargs)
            path = names.get(id(layer), layer_path(layer.name))
            taken, given = (filter(_is_tensor, jax.tree.leaves(each)) for each in ((args, kwargs), outputs))
            noted[0].note(path, type(layer).__name__, taken, given)
            return outputs

        return wrapped

    def called(state: list[list[jax.Array]], inputs: jax.Array | dict[str, jax.Array]) -> object:
        noted.append(Outputs(inputs))
        return model.stateless_call(*state, inputs, **private.training_argument(model, training=False))

    inputs = model_inputs(data, lambda spec: jax.ShapeDtypeStruct((batch, *spec.shape), spec.dtype))
    with private.calls_replaced(private.all_layers(model), recorded):
        jax.eval_shape(called, variable_shapes(model), inputs)
    return noted[0].found


def _is_tensor(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
