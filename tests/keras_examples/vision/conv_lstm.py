"""The next frame of a film by convolutional LSTMs."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    film = keras.Input(input_shape)
    x = layers.ConvLSTM2D(4, 5, padding="same", return_sequences=True, activation="relu")(film)
    x = layers.BatchNormalization()(x)
    x = layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True, activation="relu")(x)
    return keras.Model(film, layers.Conv3D(outputs.units, 3, padding="same", activation="sigmoid")(x))


def load():
    rng = np.random.default_rng(0)
    film = np.zeros((96, 6, 8, 8, 1), "float32")
    for row, place in enumerate(rng.integers(0, 8, (96, 2))):
        for frame in range(6):
            film[row, frame, place[0], (place[1] + frame) % 8] = 1
    return by_split({"frames": film[:, :-1], "next": film[:, 1:]})
