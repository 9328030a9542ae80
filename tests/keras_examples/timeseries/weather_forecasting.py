"""The next value of a quantity from the last hours of several, by an LSTM."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential([keras.Input(input_shape), layers.LSTM(16), layers.Dense(outputs.units)])


def load():
    rng = np.random.default_rng(0)
    hours = np.arange(13) / 4 + 6 * rng.random((96, 1))
    measured = np.stack([np.sin(hours), np.cos(hours), rng.normal(size=hours.shape)], axis=-1).astype("float32")
    return by_split({"measured": measured[:, :-1], "temperature": measured[:, -1, 0]})
