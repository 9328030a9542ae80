"""Layers and tensor functions of both Keras flavors, tf_keras and Keras 3, so that one builder serves the two."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

# Functions that TensorFlow and `keras.ops` name alike.
_SAME_NAME = (
    "cast",
    "convert_to_tensor",
    "einsum",
    "equal",
    "expand_dims",
    "greater",
    "less",
    "not_equal",
    "one_hot",
    "reshape",
    "square",
    "tile",
    "transpose",
)

# Of the Keras flavor that a builder was called with.
Tensor = Any

L = TypeVar("L", bound="PortableLayer")


def is_on_jax(keras: Any) -> bool:
    """Returns whether a Keras module is Keras 3, which this project runs on JAX only."""
    return hasattr(keras, "ops")


def ops_of(keras: Any) -> Any:
    """Returns the tensor functions of a Keras flavor, named as in `keras.ops`.

    For tf_keras these are `softmax`, `mean` and `sum` over the last dim, `take`, `rsqrt`, `sigmoid`, `tanh`, and the
    functions that TensorFlow has under the same name.
    """
    if is_on_jax(keras):
        return keras.ops
    # Imported by name: tf_keras has imported TensorFlow already, but engine=jax may run without it.
    tf = importlib.import_module("tensorflow")
    functions = {name: getattr(tf, name) for name in _SAME_NAME}
    return SimpleNamespace(
        **functions,
        softmax=tf.nn.softmax,
        mean=tf.reduce_mean,
        sum=tf.reduce_sum,
        take=tf.gather,
        rsqrt=tf.math.rsqrt,
        sigmoid=tf.math.sigmoid,
        tanh=tf.math.tanh,
    )


def flat(value: Any) -> list[Any]:
    """Returns the leaves of nested mappings, lists and tuples, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return [value]
    leaves = []
    for part in value:
        leaves += flat(part)
    return leaves


class PortableLayer:
    """A Keras layer without its Keras base class, which `bind` adds.

    A builder is called with the Keras module of the run's engine, and neither flavor may be imported before that. So
    the base class isn't known where the layer is written. What a layer needs of its Keras flavor are these attributes.

    Attributes:
      keras: the `tf_keras` or `keras` module.
      ops: its tensor functions, see `ops_of`.
      on_jax: the flavor is Keras 3, which runs on JAX here.
    """

    keras: Any
    ops: Any
    on_jax: bool

    # Of `keras.layers.Layer`, what the layers of this package call of their base class.
    if TYPE_CHECKING:
        name: str
        compute_dtype: str
        trainable_variables: list[Any]
        add_weight: Any
        add_loss: Any

        def __init__(self, **kwargs: Any) -> None: ...

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102

        def build(self, input_shape: Any) -> None: ...  # noqa: D102

        def get_config(self) -> dict[str, Any]: ...  # noqa: D102


@functools.cache
def bind(layer: type[L], keras: ModuleType) -> type[L]:
    """Returns a layer as a class of one Keras flavor.

    The result is cached, so that all layers of one kind have the same class.
    """
    attributes = {
        "keras": keras,
        "ops": ops_of(keras),
        "on_jax": is_on_jax(keras),
        # Keras writes the two names into saved models, plans list the class by its name.
        "__module__": layer.__module__,
        "__qualname__": layer.__qualname__,
        "__doc__": layer.__doc__,
    }
    return types.new_class(
        layer.__name__, (layer, keras.layers.Layer), exec_body=lambda namespace: namespace.update(attributes)
    )
