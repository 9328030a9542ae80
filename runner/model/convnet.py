"""The convolutional network of the Keras guide to distributed training with JAX, by F. Chollet (2023)."""

from __future__ import annotations

from typing import Any

from runner.model.inputs import Inputs, with_image


def build(keras: Any, inputs: Inputs, num_classes: int, dense: int = 256, dropout: float = 0.5) -> Any:
    """Builds three convolutions with batch normalization, a dense layer and dropout.

    Returns:
      A model: float32 images in [0, 1] (batch, height, width, channel) -> logits (batch, num_classes).
    """
    layers = keras.layers
    taken, image, with_other_inputs = with_image(keras, inputs)
    x = layers.Conv2D(12, 3, padding="same", use_bias=False, name="conv1")(image)
    x = layers.BatchNormalization(scale=False, center=True, name="conv1_norm")(x)
    x = layers.ReLU(name="conv1_relu")(x)
    x = layers.Conv2D(24, 6, use_bias=False, strides=2, name="conv2")(x)
    x = layers.BatchNormalization(scale=False, center=True, name="conv2_norm")(x)
    x = layers.ReLU(name="conv2_relu")(x)
    x = layers.Conv2D(32, 6, padding="same", strides=2, name="conv3")(x)
    x = layers.BatchNormalization(scale=False, center=True, name="conv3_norm")(x)
    x = layers.ReLU(name="conv3_relu")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    x = layers.Dense(dense, activation="relu", name="dense1")(with_other_inputs(x))
    x = layers.Dropout(dropout, name="dropout")(x)
    logits = layers.Dense(num_classes, name="dense2")(x)
    return keras.Model(taken, logits, name="convnet")
