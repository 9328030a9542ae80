"""What the engine leans on of TensorFlow and tf_keras that is no public interface, each with what breaks without it.

`tests/engine/test_dtensor_private.py` calls each one, and names the versions where one has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager import context
from tf_keras.src.dtensor import layout_map as tf_keras_layout_map
from tf_keras.src.engine import base_layer
from tf_keras.src.layers.convolutional import base_conv

# A dropout of tf_keras's own draws a mask that depends on the mesh; without the class it is not found and refused.
RandomLayer = base_layer.BaseRandomLayer
# Every convolution, transposed ones too: without the class those of a user's model get kernels that are split.
Convolution = base_conv.Conv

_SKIP = ("_self_tracked_trackables", "_trainable_weights", "_non_trainable_weights", "_captured_weight_regularizer")


def function_names() -> frozenset[str]:
    """Returns the names of all functions that TensorFlow holds now.

    Without it the plan can't tell which program DTensor made of a step, and counts no collectives.
    """
    return frozenset(str(name) for name in context.context().list_function_names())


def function_nodes(name: str) -> dict[str, NodeDef]:
    """Returns the nodes of one of TensorFlow's functions by name; without it as `function_names`."""
    return {node.name: node for node in context.context().get_function_def(name).node_def}


def is_functional(model: tf_keras.layers.Layer) -> bool:
    """Tells whether a layer is a Sequential or functional model, whose layers know their shapes and givers.

    Without it a functional model is taken for a subclassed one, and its variables get other paths.
    """
    return isinstance(model, tf_keras.Sequential) or bool(getattr(model, "_is_graph_network", False))


def is_called_once(layer: tf_keras.layers.Layer) -> bool:
    """Tells whether a layer of a functional model has one call; without it the plan shows one of several outputs."""
    return len(layer._inbound_nodes) <= 1


def giver(tensor: Any) -> tf_keras.layers.Layer:
    """Returns the layer that gives a symbolic tensor; without it the plan does not know a layer's inputs."""
    return tensor._keras_history.layer


def attributes(owner: tf_keras.layers.Layer, kind: type) -> Iterator[tuple[str, Any]]:
    """Yields (attribute path with slashes, value) of all that a layer holds of a kind, as tf_keras's LayoutMap has it.

    Without it variables have no canonical paths.
    """
    found = owner._flatten(predicate=lambda item: isinstance(item, kind), with_path=True)
    for path, value in found:
        if not any(skipped in path for skipped in _SKIP):
            yield "/".join(str(part) for part in path), value


def map_subclassed(model: tf_keras.Model, inputs: Any, layout_map: Any) -> None:
    """Gives a subclassed model its variables: a symbolic call makes them, tf_keras's own mapper places them.

    Without it the model's ordinary first call would hand DTensor inputs with one dim too many to the layers.

    Args:
      model: not built.
      inputs: symbolic, as it is called with them.
      layout_map: tf_keras's, of all variables.
    """
    base_layer.Layer.__call__(model, inputs)
    tf_keras_layout_map._map_subclass_model_variable(model, layout_map)


def reads_by(stored: type, give: Callable[[Any, Any], tf.Tensor], *, reads: bool = True) -> type:
    """Returns a subclass of a variable's class whose ordinary reads give something else.

    Without `_dense_var_to_tensor` operations that take the variable itself, as a matmul does, see what is stored.

    Args:
      stored: class of a DVariable.
      give: (variable, what is stored) -> what its readers get.
      reads: what is stored is read; else `give` gets None for it.
    """

    class Read(stored):  # type: ignore[misc]
        """A DVariable whose readers get something else than it holds."""

        def read_value(self) -> tf.Tensor:
            return give(self, super().read_value() if reads else None)

        def value(self) -> tf.Tensor:
            return give(self, super().value() if reads else None)

        def _dense_var_to_tensor(
            self, dtype: tf.DType | None = None, name: str | None = None, as_ref: bool = False
        ) -> tf.Tensor:
            del name, as_ref
            value = self.value()
            return value if dtype is None else tf.cast(value, dtype)

    return Read
