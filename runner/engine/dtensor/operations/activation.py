"""Activations whose gradient DTensor has no rule for, by operations that it has."""

from __future__ import annotations

import tensorflow as tf


def silu(features: tf.Tensor, beta: tf.Tensor | float = 1.0) -> tf.Tensor:
    """Stands for `tf.nn.silu`, whose custom gradient makes DTensor end in an error of its compiler."""
    x = tf.convert_to_tensor(features)
    return x * tf.sigmoid(tf.cast(beta, x.dtype) * x)


def softsign(features: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Stands for `tf.nn.softsign`."""
    with tf.name_scope(name or "softsign"):
        x = tf.convert_to_tensor(features)
        return x / (1.0 + tf.abs(x))
