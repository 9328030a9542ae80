"""Uses of private interfaces of TensorFlow and tf_keras, and what breaks without each.

`tests/engine/test_dtensor_private.py` calls each one, and names the versions where one has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.compat import v2 as tf_v2
from tensorflow.python.ops import gen_nn_ops, stateless_random_ops
from tf_keras.src import backend
from tf_keras.src.engine import base_layer, node
from tf_keras.src.layers.convolutional import base_conv

# Layers that draw random numbers, and their generators: without the classes their masks depend on the mesh.
RandomLayer = base_layer.BaseRandomLayer
RandomGenerator = backend.RandomGenerator
# One call of a layer in a functional model: without it the constants among its arguments are not placed.
Node = node.Node
# Every convolution: without the class those of a user's model get sharded kernels.
Convolution = base_conv.Conv

# Modules whose functions `.operations` replaces while a step is traced: if one of those functions moves, a layer
# reaches an operation that DTensor can't compile, and the run is rejected.
KERNELS = gen_nn_ops
STATELESS = stateless_random_ops
PUBLIC = (tf, tf_v2)

# Attributes in which tf_keras keeps the variables once more: a path through them is not the one that a user wrote.
_SKIP = ("_self_tracked_trackables", "_trainable_weights", "_non_trainable_weights", "_captured_weight_regularizer")


def is_functional(model: tf_keras.layers.Layer) -> bool:
    """Returns whether a layer is a Sequential or functional model; else its variables get other paths."""
    return isinstance(model, tf_keras.Sequential) or bool(getattr(model, "_is_graph_network", False))


def attributes(owner: tf_keras.layers.Layer, kind: type) -> Iterator[tuple[str, Any]]:
    """Yields (attribute path with slashes, value) for a layer's objects of one class, for canonical paths."""
    for path, value in owner._flatten(predicate=lambda item: isinstance(item, kind), with_path=True):
        if not any(skipped in path for skipped in _SKIP):
            yield "/".join(map(str, path)), value


def build_by_call(model: tf_keras.Model, inputs: Any) -> None:
    """Creates a subclassed model's variables by a symbolic call, whose inputs keep their number of dims."""
    base_layer.Layer.__call__(model, inputs)


def generator(layer: tf_keras.layers.Layer) -> Any:
    """Returns the generator of a random layer, see `RandomGenerator`."""
    return layer._random_generator


def reads_by(stored: type, give: Callable[[Any, Callable[[], tf.Tensor]], tf.Tensor]) -> type:
    """Returns a subclass of a variable's class whose reads are what `give` returns, from the stored value's read.

    Without `_dense_var_to_tensor` operations that take the variable itself, such as a matmul, get the stored value.
    """

    class Read(stored):  # type: ignore[misc]
        def read_value(self) -> tf.Tensor:
            return give(self, super().read_value)

        def value(self) -> tf.Tensor:
            return give(self, super().value)

        def _dense_var_to_tensor(
            self, dtype: tf.DType | None = None, name: str | None = None, as_ref: bool = False
        ) -> tf.Tensor:
            del name, as_ref
            value = self.value()
            return value if dtype is None else tf.cast(value, dtype)

    return Read
