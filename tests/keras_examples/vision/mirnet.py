"""Dark images to bright ones by branches of two resolutions."""

import numpy as np

from tests.keras_examples.spec import by_split


def charbonnier(ops, outputs, batch):
    error = outputs - batch["bright"]
    return ops.mean(ops.sqrt(ops.square(error) + 1e-6), axis=(1, 2, 3))


def psnr(ops, outputs, batch):
    return -10 * ops.log(ops.mean(ops.square(outputs - batch["bright"]), axis=(1, 2, 3))) / ops.log(10.0)


def make_model(keras, input_shape, outputs):
    layers = keras.layers

    def attended(x):
        filters = x.shape[-1]
        share = layers.GlobalAveragePooling2D(keepdims=True)(x)
        share = layers.Conv2D(filters, 1, activation="sigmoid")(layers.Conv2D(4, 1, activation="relu")(share))
        return layers.Add()([x, layers.Multiply()([x, share])])

    dark = keras.Input(input_shape)
    x = start = layers.Conv2D(8, 3, padding="same")(dark)
    low = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.AveragePooling2D(2)(x))
    high = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = layers.Add()([attended(high), layers.UpSampling2D(2, interpolation="bilinear")(attended(low))])
    x = layers.Add()([layers.Conv2D(8, 3, padding="same")(x), start])
    return keras.Model(dark, layers.Add()([dark, layers.Conv2D(outputs.units, 3, padding="same")(x)]))


def load():
    rng = np.random.default_rng(0)
    bright = np.repeat(np.repeat(rng.random((96, 4, 4, 3)), 4, axis=1), 4, axis=2)
    dark = 0.2 * bright + rng.normal(0, 0.02, bright.shape)
    return by_split({"dark": dark.astype("float32"), "bright": bright.astype("float32")})
