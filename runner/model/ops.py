"""Tensor functions under one set of names for both Keras flavors, so that one builder serves tf_keras and Keras 3."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

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


def is_on_jax(keras: Any) -> bool:
    """Returns whether a Keras module is Keras 3, which this project runs on JAX only."""
    return hasattr(keras, "ops")


def of(keras: Any) -> Any:
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
