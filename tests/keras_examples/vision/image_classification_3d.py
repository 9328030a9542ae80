"""CT scans by a 3D convnet."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    scan = keras.Input(input_shape)
    x = scan
    for filters in (4, 8):
        x = layers.Conv3D(filters, 3, activation="relu")(x)
        x = layers.BatchNormalization()(layers.MaxPooling3D(2)(x))
    x = layers.GlobalAveragePooling3D()(x)
    x = layers.Dropout(0.3)(layers.Dense(16, activation="relu")(x))
    return keras.Model(scan, layers.Dense(outputs.units, activation="sigmoid")(x))


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 96).astype("int32")
    scan = rng.normal(0, 0.3, (96, 12, 12, 12, 1)).astype("float32")
    scan[:, 4:8, 4:8, 4:8] += label[:, None, None, None, None]
    return by_split({"scan": scan, "label": label})
