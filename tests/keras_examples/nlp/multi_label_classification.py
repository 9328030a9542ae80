"""Subject areas of papers by a network over counted words."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Dense(64, activation="relu"),
            layers.Dense(32, activation="relu"),
            layers.Dense(outputs.units),
        ]
    )


def load():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (96, 5)).astype("int32")
    words = rng.random((96, 40)) * (rng.random((96, 40)) < 0.3)
    words[:, :10] += np.repeat(labels, 2, axis=1) / 2
    return by_split({"words": words.astype("float32"), "labels": labels})
