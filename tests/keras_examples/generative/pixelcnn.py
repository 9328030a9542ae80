"""Digits pixel by pixel by masked convolutions."""

import functools

import numpy as np

from tests.keras_examples.spec import by_split


@functools.cache
def masked_class(keras):
    class MaskedConv2D(keras.layers.Layer):
        """A convolution that sees no pixel below, none to the right, and itself only if `sees_itself`."""

        def __init__(self, filters, size, sees_itself, **options):
            super().__init__(**options)
            self.filters, self.size = filters, size
            mask = np.zeros((size, size, 1, 1), "float32")
            mask[: size // 2] = 1
            mask[size // 2, : size // 2 + sees_itself] = 1
            self.mask = mask

        def build(self, input_shape):
            shape = (self.size, self.size, input_shape[-1], self.filters)
            self.kernel = self.add_weight(shape=shape, initializer="glorot_uniform", name="kernel")
            self.bias = self.add_weight(shape=(self.filters,), initializer="zeros", name="bias")
            super().build(input_shape)

        def call(self, x):
            return keras.ops.conv(x, self.kernel * self.mask, padding="same") + self.bias

    return MaskedConv2D


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    masked = masked_class(keras)
    pixels = keras.Input(input_shape)
    x = layers.Activation("relu")(masked(16, 7, False)(pixels))
    for _ in range(2):
        inner = layers.Activation("relu")(masked(8, 3, True)(layers.Conv2D(16, 1, activation="relu")(x)))
        x = layers.Add()([x, layers.Conv2D(16, 1, activation="relu")(inner)])
    x = layers.Activation("relu")(masked(16, 1, True)(x))
    return keras.Model(pixels, layers.Conv2D(outputs.units, 1, activation="sigmoid")(x))


def load():
    rng = np.random.default_rng(0)
    coarse = rng.random((96, 3, 3, 1)) > 0.5
    return by_split({"pixels": np.repeat(np.repeat(coarse, 4, axis=1), 4, axis=2).astype("float32")})
