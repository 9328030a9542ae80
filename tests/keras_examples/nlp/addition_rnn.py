"""Sums of numbers, written as characters, by an encoder and a decoder."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.LSTM(24),
            layers.RepeatVector(3),
            layers.LSTM(24, return_sequences=True),
            layers.Dense(outputs.units, activation="softmax"),
        ]
    )


def load():
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 100, (96, 2))
    characters = "0123456789+ "

    def coded(texts):
        return np.array([[characters.index(one) for one in text] for text in texts], "int32")

    question = coded([f"{a}+{b}".ljust(5) for a, b in numbers])
    answer = coded([str(total).ljust(3) for total in numbers.sum(axis=1)])
    return by_split({"question": np.eye(12, dtype="float32")[question], "sum": answer})
