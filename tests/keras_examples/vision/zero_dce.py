"""Dark images to bright ones without a target: the network predicts curves."""

import numpy as np

from tests.keras_examples.spec import by_split


def enhanced(outputs, image):
    for step in range(4):
        curve = outputs[..., 3 * step : 3 * step + 3]
        image = image + curve * (image * image - image)
    return image


def color(ops, outputs, batch):
    red, green, blue = (ops.mean(enhanced(outputs, batch["image"])[..., c], axis=(1, 2)) for c in range(3))
    return ops.sqrt(
        1e-8
        + ops.square(ops.square(red - green))
        + ops.square(ops.square(red - blue))
        + ops.square(ops.square(green - blue))
    )


def regions(ops, image):
    gray = ops.mean(image, axis=-1)
    return ops.mean(ops.reshape(gray, (-1, 4, 4, 4, 4)), axis=(2, 4))


def exposure(ops, outputs, batch):
    bright = regions(ops, enhanced(outputs, batch["image"]))
    return ops.mean(ops.square(bright - 0.6), axis=(1, 2))


def smoothness(ops, outputs, batch):
    del batch
    down = ops.square(outputs[:, 1:] - outputs[:, :-1])
    right = ops.square(outputs[:, :, 1:] - outputs[:, :, :-1])
    return 2 * (ops.mean(down, axis=(1, 2, 3)) + ops.mean(right, axis=(1, 2, 3)))


def spatial(ops, outputs, batch):
    old, new = regions(ops, batch["image"]), regions(ops, enhanced(outputs, batch["image"]))
    down = (new[:, 1:] - new[:, :-1]) - (old[:, 1:] - old[:, :-1])
    right = (new[:, :, 1:] - new[:, :, :-1]) - (old[:, :, 1:] - old[:, :, :-1])
    return ops.mean(ops.square(down), axis=(1, 2)) + ops.mean(ops.square(right), axis=(1, 2))


def loss(ops, outputs, batch):
    total = 200 * smoothness(ops, outputs, batch) + spatial(ops, outputs, batch)
    return total + 5 * color(ops, outputs, batch) + 10 * exposure(ops, outputs, batch)


def make_model(keras, input_shape, outputs):
    layers = keras.layers

    def convolved(x, filters=8, activation="relu"):
        return layers.Conv2D(filters, 3, padding="same", activation=activation)(x)

    image = keras.Input(input_shape)
    one = convolved(image)
    two = convolved(one)
    three = convolved(two)
    x = convolved(layers.Concatenate()([three, two]))
    x = layers.Concatenate()([x, one])
    return keras.Model(image, convolved(x, outputs.units, "tanh"))


def load():
    rng = np.random.default_rng(0)
    image = 0.3 * np.repeat(np.repeat(rng.random((96, 4, 4, 3)), 4, axis=1), 4, axis=2)
    return by_split({"image": image.astype("float32")})
