"""Fraud among many honest payments, with a weight per class."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Dense(32, activation="relu"),
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(outputs.units, activation="sigmoid"),
        ]
    )


def load():
    rng = np.random.default_rng(0)
    label = (rng.random(96) < 0.1).astype("int32")
    payment = rng.normal(size=(96, 12)) + 2 * label[:, None]
    return by_split({"payment": payment.astype("float32"), "label": label})
