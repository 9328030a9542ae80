"""Noisy images to clean ones by a convolutional autoencoder."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(8, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(2, padding="same"),
            layers.Conv2D(8, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(2, padding="same"),
            layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same"),
            layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same"),
            layers.Conv2D(outputs.units, 3, activation="sigmoid", padding="same"),
        ]
    )


def load():
    rng = np.random.default_rng(0)
    clean = np.repeat(np.repeat(rng.random((96, 4, 4, 1)), 4, axis=1), 4, axis=2)
    noisy = np.clip(clean + rng.normal(0, 0.4, clean.shape), 0, 1)
    return by_split({"noisy": noisy.astype("float32"), "clean": clean.astype("float32")})
