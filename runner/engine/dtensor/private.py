"""What the engine leans on of TensorFlow and tf_keras that is no public interface, each with what breaks without it.

`tests/engine/test_dtensor_private.py` calls each one, and names the versions where one has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.compat import v2 as tf_v2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager import context
from tensorflow.python.ops import array_ops, gen_array_ops, gen_manip_ops, gen_nn_ops, nn_ops, stateless_random_ops
from tf_keras.src import backend
from tf_keras.src.engine import base_layer, node
from tf_keras.src.layers.convolutional import base_conv
from tf_keras.src.layers.rnn import dropout_rnn_cell_mixin, gru, lstm
from tf_keras.src.mixed_precision import autocast_variable

# Layers that draw numbers, and what each draws with: without the classes their masks depend on the mesh.
RandomLayer = base_layer.BaseRandomLayer
RandomGenerator = backend.RandomGenerator
# One call of a layer in a functional model: without it the constants among its arguments are not placed.
Node = node.Node
# Every convolution, transposed ones too: without the class those of a user's model get kernels that are split.
Convolution = base_conv.Conv

# Modules whose functions `.operations` answers otherwise while a step is traced: without one of those functions where
# it was, a layer reaches an operation that DTensor can't compile, and the run is refused.
KERNELS = gen_nn_ops
RAW_ARRAYS = gen_array_ops
MANIPULATIONS = gen_manip_ops
NN = nn_ops
ARRAYS = array_ops
STATELESS = stateless_random_ops
BACKEND = backend
LSTM = lstm
GRU = gru
PUBLIC = (tf, tf_v2)

_SKIP = ("_self_tracked_trackables", "_trainable_weights", "_non_trainable_weights", "_captured_weight_regularizer")


def function_names() -> frozenset[str]:
    """Returns the names of all functions that TensorFlow holds now.

    Without it the plan can't tell which program DTensor made of a step, and counts no collectives.
    """
    return frozenset(str(name) for name in context.context().list_function_names())


def wait_for_devices() -> None:
    """Waits for what was started, and lets other threads run meanwhile.

    Without it `dtensor.unpack` waits and holds the interpreter's lock, so that process 0 can't answer the process that
    its own collective waits for.
    """
    context.async_wait()


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


def build_by_call(model: tf_keras.Model, inputs: Any) -> None:
    """Makes a subclassed model's variables by a symbolic call.

    Without it the model's ordinary first call would hand the layers inputs with one dim too many.

    Args:
      model: not built.
      inputs: symbolic, as it is called with them.
    """
    base_layer.Layer.__call__(model, inputs)


def let_walk(model: tf.Module) -> None:
    """Lets `submodules` pass by the caches of recurrent cells, which it fails on once two graphs have filled them.

    Without it a model with a recurrent dropout can't be walked after its step was traced.
    """
    for layer in model._flatten_layers() if isinstance(model, base_layer.Layer) else ():
        if isinstance(layer, dropout_rnn_cell_mixin.DropoutRNNCellMixin):
            ignored = type(layer)._TF_MODULE_IGNORED_PROPERTIES | {
                "_dropout_mask_cache",
                "_recurrent_dropout_mask_cache",
            }
            vars(layer)["_TF_MODULE_IGNORED_PROPERTIES"] = ignored


def needs_autograph(model: tf.Module) -> bool:
    """Tells whether a layer's code is a user's own, which may choose by tensors: tf_keras converts that of no other.

    Without it every model of a user's is traced by AutoGraph, which takes twice the time.
    """
    if not isinstance(model, base_layer.Layer):
        return True
    return any(layer._should_use_autograph() for layer in (model, *model._flatten_layers()))


def generator(layer: tf_keras.layers.Layer) -> Any:
    """Returns what a random layer draws with; without it as `RandomGenerator`."""
    return layer._random_generator


def uncast(variable: tf.Variable) -> tf.Variable:
    """Returns the variable behind one that a layer of mixed precision reads in another type; else the same.

    Without it such a variable is not placed.
    """
    return variable._variable if isinstance(variable, autocast_variable.AutoCastVariable) else variable


def recast(variable: tf.Variable, stored: tf.Variable) -> tf.Variable:
    """Puts another variable behind one of `uncast`, and returns what layers hold; else the other one itself."""
    if not isinstance(variable, autocast_variable.AutoCastVariable):
        return stored
    variable._variable = stored
    return variable


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
