"""Films by a transformer over tubes of pixels."""

import numpy as np

from tests.keras_examples.layers import positions
from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    film = keras.Input(input_shape)
    x = layers.Conv3D(16, 4, strides=4)(film)
    x = positions(keras)(layers.Reshape((8, 16))(x))
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([layers.MultiHeadAttention(2, 8, dropout=0.1)(normed, normed), x])
        inner = layers.Dense(32, activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(x))
        x = layers.Add()([layers.Dense(16, activation="gelu")(inner), x])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(film, layers.Dense(num_classes)(x))


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 6, 96).astype("int32")
    film = rng.normal(label[:, None, None, None, None] / 6, 0.3, (96, 8, 8, 8, 1))
    return by_split({"film": film.astype("float32"), "label": label})
