"""Small images to larger ones by sub-pixel convolution."""

import numpy as np

from tests.keras_examples.spec import by_split


def loss(ops, outputs, batch):
    return ops.mean(ops.square(outputs - batch["large"]), axis=(1, 2, 3))


def psnr(ops, outputs, batch):
    return -10 * ops.log(loss(ops, outputs, batch)) / ops.log(10.0)


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    height, width, channels = input_shape
    small = keras.Input(input_shape)
    x = small
    for filters, size in ((16, 5), (16, 3), (8, 3), (4 * outputs.units, 3)):
        x = layers.Conv2D(filters, size, activation="relu", kernel_initializer="orthogonal", padding="same")(x)
    x = layers.Reshape((height, width, 2, 2, channels))(x)
    x = layers.Permute((1, 3, 2, 4, 5))(x)
    return keras.Model(small, layers.Reshape((2 * height, 2 * width, channels))(x))


def load():
    rng = np.random.default_rng(0)
    coarse = np.repeat(np.repeat(rng.random((96, 4, 4, 1)), 4, axis=1), 4, axis=2)
    large = (coarse + np.roll(coarse, 1, axis=1)) / 2
    return by_split({"small": large[:, ::2, ::2].astype("float32"), "large": large.astype("float32")})
