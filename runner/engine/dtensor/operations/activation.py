"""Activations whose gradients DTensor has no rule for.

They are composed of operations that it has a rule for.
"""

from __future__ import annotations

import tensorflow as tf


def silu(features: tf.Tensor, beta: tf.Tensor | float = 1.0) -> tf.Tensor:
    """Replaces `tf.nn.silu`, whose custom gradient fails in DTensor's compiler."""
    x = tf.convert_to_tensor(features)
    return x * tf.sigmoid(tf.cast(beta, x.dtype) * x)


def softsign(features: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Replaces `tf.nn.softsign`, whose gradient has no rule."""
    with tf.name_scope(name or "softsign"):
        x = tf.convert_to_tensor(features)
        return x / (1.0 + tf.abs(x))
