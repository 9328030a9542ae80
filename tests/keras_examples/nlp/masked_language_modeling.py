"""Hidden words of a text by a small encoder."""

import numpy as np

from tests.keras_examples import data
from tests.keras_examples.layers import encoder, positions


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = encoder(keras, positions(keras)(layers.Embedding(32, 16)(tokens)))
    return keras.Model(tokens, layers.Dense(outputs.units)(x))


def load():
    rng = np.random.default_rng(0)
    splits = {}
    for name, arrays in data.sentences().items():
        words = arrays["tokens"]
        hidden = rng.random(words.shape) < 0.15
        splits[name] = {"tokens": np.where(hidden, 0, words), "words": words, "hidden": hidden.astype("float32")}
    return splits
