"""Images whose patches and labels are mixed."""

import functools

import numpy as np

from tests.keras_examples import data


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(image)))
    for filters, strides in ((8, 1), (16, 2)):
        inner = layers.Conv2D(filters, 3, strides=strides, padding="same")(x)
        inner = layers.Activation("relu")(layers.BatchNormalization()(inner))
        inner = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(inner))
        if strides != 1:
            x = layers.Conv2D(filters, 1, strides=strides, padding="same")(x)
        x = layers.Activation("relu")(layers.Add()([x, inner]))
    return keras.Model(image, layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(x)))


@functools.cache
def load():
    splits = data.images(channels=3)
    for arrays in splits.values():
        arrays["label"] = np.eye(4, dtype="float32")[arrays["label"]]
    return splits


def cutmix(arrays, rng, alpha):
    """Pastes a window of another training example, and mixes the labels by its area."""
    images, labels = load()["train"].values()
    other = rng.integers(len(images))
    height, width = images.shape[1:3]
    side = np.sqrt(1 - rng.beta(alpha, alpha))
    top, left = rng.integers(height), rng.integers(width)
    window = np.zeros((height, width, 1), "float32")
    window[top : top + round(height * side), left : left + round(width * side)] = 1
    share = window.mean(dtype="float32")
    return {
        "image": np.where(window, images[other], arrays["image"]),
        "label": share * labels[other] + (1 - share) * arrays["label"],
    }
