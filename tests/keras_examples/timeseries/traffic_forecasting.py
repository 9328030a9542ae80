"""The next speeds on several roads, by a graph convolution and an LSTM."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    steps, roads = input_shape
    ring = np.eye(roads) / 2 + np.roll(np.eye(roads), 1, axis=1) / 2
    speeds = keras.Input(input_shape)
    near = layers.Dense(
        roads, use_bias=False, trainable=False, kernel_initializer=keras.initializers.Constant(ring), name="graph"
    )(speeds)
    both = layers.Concatenate()([layers.Reshape((steps, roads, 1))(x) for x in (speeds, near)])
    x = layers.Dense(4, activation="relu")(both)
    x = layers.Reshape((steps, 4 * roads))(x)
    return keras.Model(speeds, layers.Dense(outputs.units)(layers.LSTM(16)(x)))


def load():
    rng = np.random.default_rng(0)
    hours = np.arange(9)[None, :, None] / 2 + np.arange(6) / 3 + 6 * rng.random((96, 1, 1))
    speeds = (np.sin(hours) + rng.normal(0, 0.1, hours.shape)).astype("float32")
    return by_split({"speeds": speeds[:, :-1], "next": speeds[:, -1]})
