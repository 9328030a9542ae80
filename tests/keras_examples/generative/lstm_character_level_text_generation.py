"""The next character of a text by an LSTM."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    return keras.Sequential([keras.Input(input_shape), layers.LSTM(24), layers.Dense(num_classes)])


def load():
    rng = np.random.default_rng(0)
    start = rng.integers(0, 16, (96, 1))
    text = (start + 3 * np.arange(11)) % 16
    return by_split({"text": np.eye(16, dtype="float32")[text[:, :-1]], "next": text[:, -1].astype("int32")})
