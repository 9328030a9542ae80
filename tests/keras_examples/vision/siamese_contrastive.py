"""Whether two digits are the same, by the distance of their codes."""

import numpy as np

from tests.keras_examples.spec import by_split


def contrastive(ops, outputs, batch):
    distance = ops.squeeze(outputs, -1)
    differ = ops.cast(batch["differ"], "float32")
    return (1 - differ) * ops.square(distance) + differ * ops.square(ops.maximum(1 - distance, 0.0))


def accuracy(ops, outputs, batch):
    differ = ops.cast(batch["differ"], "float32")
    return ops.cast(ops.equal(ops.cast(ops.greater(ops.squeeze(outputs, -1), 0.5), "float32"), differ), "float32")


def make_model(keras, inputs, outputs):
    layers = keras.layers
    shape = inputs["left"].shape
    tower = keras.Sequential(
        [
            keras.Input(shape),
            layers.BatchNormalization(),
            layers.Conv2D(4, 5, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Conv2D(8, 5, activation="tanh"),
            layers.Flatten(),
            layers.BatchNormalization(),
            layers.Dense(8, activation="tanh"),
        ],
        name="tower",
    )
    left, right = keras.Input(shape, name="left"), keras.Input(shape, name="right")
    gap = layers.Subtract()([tower(left), tower(right)])
    square = layers.Dot(axes=1)([gap, gap])
    x = layers.BatchNormalization()(square)
    return keras.Model({"left": left, "right": right}, layers.Dense(outputs.units, activation="sigmoid")(x))


def load():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, (2, 96))
    left, right = (rng.normal(k[:, None, None, None] / 3, 0.2, (96, 16, 16, 1)).astype("float32") for k in kind)
    return by_split({"left": left, "right": right, "differ": (kind[0] != kind[1]).astype("int32")})
