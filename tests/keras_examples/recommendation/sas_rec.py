"""The next film of a user by causal attention over the films before."""

import numpy as np

from tests.keras_examples import data
from tests.keras_examples.layers import positions


def loss(ops, outputs, batch):
    del batch
    wanted, other = outputs[:, :, 0], outputs[:, :, 1]
    return ops.mean(ops.softplus(-wanted) + ops.softplus(other), axis=-1) / 2


def make_model(keras, inputs, outputs):
    layers = keras.layers
    assert outputs.units == 2
    table = layers.Embedding(32, 16)
    numbers = {name: keras.Input(inputs[name].shape, dtype="int32", name=name) for name in ("films", "near", "other")}
    x = positions(keras)(table(numbers["films"]))
    normed = layers.LayerNormalization(epsilon=1e-5)(x)
    # A bias of the keys changes no weight of attention.
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8, use_bias=False)(normed, normed, use_causal_mask=True)])
    inner = layers.Dense(16, activation="relu")(layers.LayerNormalization(epsilon=1e-5)(x))
    x = layers.LayerNormalization(epsilon=1e-8)(layers.Add()([x, layers.Dense(16)(inner)]))
    scores = []
    for name in ("near", "other"):
        product = layers.Multiply()([x, table(numbers[name])])
        scores.append(layers.Dense(1, use_bias=False, trainable=False, kernel_initializer="ones")(product))
    return keras.Model(numbers, layers.Concatenate()(scores))


def load():
    rng = np.random.default_rng(0)
    splits = {}
    for name, arrays in data.sentences(length=12).items():
        other = rng.integers(1, 32, arrays["label"].shape).astype("int32")
        splits[name] = {"films": arrays["tokens"], "near": arrays["label"], "other": other, "next": arrays["label"]}
    return splits
