"""The convolutional network of the Keras guide to distributed training with JAX, by F. Chollet (2023)."""

from __future__ import annotations

from typing import Any


def build(keras: Any, input_shape: tuple[int, ...], num_classes: int, dense: int = 256, dropout: float = 0.5) -> Any:
    """Builds three convolutions with batch normalisation, a dense layer and dropout.

    Args:
      keras: the `tf_keras` or `keras` module.
      input_shape: (height, width, channel) of one example, at least (8, 8, 1).
      num_classes: units of the last layer.
      dense: units of the hidden dense layer.
      dropout: share of its outputs set to zero while training.

    Returns:
      A model: float32 images in [0, 1] (batch, height, width, channel) -> logits (batch, num_classes).
    """
    layers = keras.layers
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(12, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = layers.BatchNormalization(scale=False, center=True, name="conv1_norm")(x)
    x = layers.ReLU(name="conv1_relu")(x)
    x = layers.Conv2D(24, 6, use_bias=False, strides=2, name="conv2")(x)
    x = layers.BatchNormalization(scale=False, center=True, name="conv2_norm")(x)
    x = layers.ReLU(name="conv2_relu")(x)
    x = layers.Conv2D(32, 6, padding="same", strides=2, name="conv3")(x)
    x = layers.BatchNormalization(scale=False, center=True, name="conv3_norm")(x)
    x = layers.ReLU(name="conv3_relu")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    x = layers.Dense(dense, activation="relu", name="dense1")(x)
    x = layers.Dropout(dropout, name="dropout")(x)
    return keras.Model(inputs, layers.Dense(num_classes, name="dense2")(x), name="convnet")
