"""Subjects of papers from their words and those of the papers that they cite."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, inputs, outputs):
    layers = keras.layers

    def network(x):
        for _ in range(2):
            x = layers.Dense(16, activation="gelu")(layers.Dropout(0.5)(layers.BatchNormalization()(x)))
        return x

    own = keras.Input(inputs["own"].shape, name="own")
    cited = keras.Input(inputs["cited"].shape, name="cited")
    x = network(own)
    for _ in range(2):
        near = layers.GlobalAveragePooling1D()(network(cited))
        x = layers.Add()([x, network(layers.Concatenate()([x, near]))])
    return keras.Model({"own": own, "cited": cited}, layers.Dense(outputs.units)(network(x)))


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 96).astype("int32")
    words = (rng.random((96, 6, 24)) < 0.2).astype("float32")
    words[:, :, :3] += np.eye(3)[label][:, None]
    return by_split({"own": words[:, 0], "cited": words[:, 1:], "label": label})
