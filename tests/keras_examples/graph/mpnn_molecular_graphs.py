"""Molecules as matrices of atoms and bonds, by messages between atoms."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, inputs, outputs):
    layers = keras.layers
    atoms = keras.Input(inputs["atoms"].shape, name="atoms")
    bonds = keras.Input(inputs["bonds"].shape, name="bonds")
    x = layers.Dense(8)(atoms)
    message, gate, candidate = layers.Dense(8), layers.Dense(8, activation="sigmoid"), layers.Dense(8, "tanh")
    for _ in range(3):
        both = layers.Concatenate()([x, layers.Dot(axes=(2, 1))([bonds, message(x)])])
        change = layers.Multiply()([gate(both), layers.Subtract()([candidate(both), x])])
        x = layers.Add()([x, change])
    attended = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)]))
    x = layers.GlobalAveragePooling1D()(attended)
    x = layers.Dense(16, activation="relu")(x)
    return keras.Model({"atoms": atoms, "bonds": bonds}, layers.Dense(outputs.units, activation="sigmoid")(x))


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 96).astype("int32")
    atoms = np.eye(4, dtype="float32")[rng.integers(0, 4, (96, 6))]
    atoms[:, 0, 0] += 2 * label
    bonds = (rng.random((96, 6, 6)) < 0.3).astype("float32")
    return by_split({"atoms": atoms, "bonds": np.maximum(bonds, bonds.transpose(0, 2, 1)), "label": label})
