"""Bags of images by attention over the images of a bag."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    bag = keras.Input(input_shape)
    count, *shape = input_shape
    x = layers.Reshape((count, int(np.prod(shape))))(bag)
    x = layers.Dense(16, activation="relu")(layers.Dense(32, activation="relu")(x))
    decay = keras.regularizers.L2(0.01)
    tanh = layers.Dense(8, activation="tanh", kernel_regularizer=decay)(x)
    sigmoid = layers.Dense(8, activation="sigmoid", kernel_regularizer=decay)(x)
    gate = layers.Multiply()([tanh, sigmoid])
    share = layers.Softmax(axis=1)(layers.Dense(1, use_bias=False, kernel_regularizer=decay)(gate))
    pooled = layers.Flatten()(layers.Dot(axes=1)([share, x]))
    return keras.Model(bag, layers.Dense(num_classes)(pooled))


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 96).astype("int32")
    bag = rng.normal(0, 0.3, (96, 3, 8, 8))
    bag[np.arange(96), rng.integers(0, 3, 96)] += label[:, None, None]
    return by_split({"bag": bag.astype("float32"), "label": label})
