"""Tensor functions under one set of names, so that one builder serves tf_keras and Keras 3."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

# Functions that TensorFlow and `keras.ops` name alike.
_SAME = (
    "cast",
    "convert_to_tensor",
    "einsum",
    "equal",
    "expand_dims",
    "not_equal",
    "one_hot",
    "reshape",
    "square",
    "tile",
    "transpose",
)


def of(keras: Any) -> Any:
    """Returns functions that take and give tensors, as `keras.ops` names them, of the Keras that a builder was given.

    For tf_keras these are `softmax` and `mean` over the last dim, `take`, `rsqrt`, `sigmoid`, and what TensorFlow has
    under the same name.
    """
    if hasattr(keras, "ops"):
        return keras.ops
    tf = importlib.import_module("tensorflow")  # which tf_keras has imported; Keras 3 on JAX has none
    return SimpleNamespace(
        **{name: getattr(tf, name) for name in _SAME},
        softmax=tf.nn.softmax,
        mean=tf.reduce_mean,
        take=tf.gather,
        rsqrt=tf.math.rsqrt,
        sigmoid=tf.math.sigmoid,
    )
