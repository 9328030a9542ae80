"""Tensor functions under one set of names, so that one builder serves tf_keras and Keras 3."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ops:
    """Functions that take and give tensors, as `keras.ops` names them.

    Attributes:
      einsum: (subscripts, *operands).
      reshape: (x, shape).
      transpose: (x, axes).
      softmax: over the last dim.
      cast: (x, dtype).
      one_hot: (x, count).
    """

    einsum: Any
    reshape: Any
    transpose: Any
    softmax: Any
    cast: Any
    one_hot: Any


def of(keras: Any) -> Ops:
    """Returns the functions of the Keras that a builder was given."""
    if hasattr(keras, "ops"):
        held = keras.ops
        return Ops(held.einsum, held.reshape, held.transpose, held.softmax, held.cast, held.one_hot)
    tf = importlib.import_module("tensorflow")  # which tf_keras has imported; Keras 3 on JAX has none
    return Ops(tf.einsum, tf.reshape, tf.transpose, tf.nn.softmax, tf.cast, tf.one_hot)
