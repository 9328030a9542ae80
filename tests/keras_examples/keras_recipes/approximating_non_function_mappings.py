"""A curve with several heights at one place, by a mixture of normal distributions."""

import numpy as np

from tests.keras_examples.spec import by_split


def mixture_loss(ops, outputs, batch):
    center, log_width, logit = outputs[:, :4], outputs[:, 4:8], outputs[:, 8:]
    distance = (ops.reshape(batch["height"], (-1, 1)) - center) / ops.exp(log_width)
    density = -0.5 * ops.square(distance) - log_width - 0.9189385
    return -ops.logsumexp(ops.log_softmax(logit) + density)


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Dense(32, activation="relu"),
            layers.Dense(32, activation="relu"),
            layers.Dense(outputs.units),
        ]
    )


def load():
    rng = np.random.default_rng(0)
    height = rng.uniform(-1, 1, (96, 1))
    place = height + 0.3 * np.sin(6 * height) + rng.normal(0, 0.05, height.shape)
    return by_split({"place": place.astype("float32"), "height": height.astype("float32")})
