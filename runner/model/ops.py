"""Tensor functions under one set of names, so that one builder serves tf_keras and Keras 3."""

from __future__ import annotations

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
    """

    einsum: Any
    reshape: Any
    transpose: Any
    softmax: Any


def of(keras: Any) -> Ops:
    """Returns the functions of the Keras that a builder was given."""
    if hasattr(keras, "ops"):
        held = keras.ops
        return Ops(held.einsum, held.reshape, held.transpose, held.softmax)
    import tensorflow as tf

    return Ops(tf.einsum, tf.reshape, tf.transpose, tf.nn.softmax)
