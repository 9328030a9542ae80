"""The rating of a film by attention over the films seen before."""

import numpy as np

from tests.keras_examples.layers import encoder, positions
from tests.keras_examples.spec import by_split


def make_model(keras, inputs, outputs):
    layers = keras.layers
    films = keras.Input(inputs["films"].shape, dtype="int32", name="films")
    ratings = keras.Input(inputs["ratings"].shape, name="ratings")
    x = positions(keras)(layers.Embedding(24, 8)(films))
    x = layers.Multiply()([x, layers.Reshape((*inputs["ratings"].shape, 1))(ratings)])
    x = layers.Flatten()(encoder(keras, x, units=8))
    for units in (32, 16):
        x = layers.Dropout(0.1)(layers.LeakyReLU()(layers.BatchNormalization()(layers.Dense(units)(x))))
    return keras.Model({"films": films, "ratings": ratings}, layers.Dense(outputs.units)(x))


def load():
    rng = np.random.default_rng(0)
    films = rng.integers(0, 24, (96, 6)).astype("int32")
    ratings = (1 + (films * 7 % 5)).astype("float32")
    return by_split(
        {"films": films, "ratings": (ratings * (np.arange(6) < 5)).astype("float32"), "rating": ratings[:, 5]}
    )
