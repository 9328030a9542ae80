"""Codes of images that are near within a class: each batch is its own set of classes."""

import numpy as np

from tests.keras_examples.spec import by_split


def similarities(ops, outputs):
    anchor, positive = outputs[:, :8], outputs[:, 8:]
    return ops.matmul(anchor, ops.transpose(positive)) / 0.2


def counted(ops, batch):
    """1 for every pair of examples, 0 in the columns of padding."""
    return ops.expand_dims(ops.cast(batch["weight"], "float32"), 0)


def loss(ops, outputs, batch):
    near = similarities(ops, outputs) - 1e9 * (1 - counted(ops, batch))
    own = ops.sum(outputs[:, :8] * outputs[:, 8:], axis=-1) / 0.2
    return ops.logsumexp(near) - own


def accuracy(ops, outputs, batch):
    near = similarities(ops, outputs) - 1e9 * (1 - counted(ops, batch))
    own = ops.sum(outputs[:, :8] * outputs[:, 8:], axis=-1) / 0.2
    return ops.cast(ops.greater_equal(own + 1e-5, ops.max(near, axis=-1)), "float32")


def make_model(keras, inputs, outputs):
    layers = keras.layers
    shape = inputs["anchor"].shape
    tower = keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(8, 3, strides=2, activation="relu"),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(outputs.units),
            layers.UnitNormalization(),
        ],
        name="tower",
    )
    anchor, positive = keras.Input(shape, name="anchor"), keras.Input(shape, name="positive")
    both = layers.Concatenate()([tower(anchor), tower(positive)])
    return keras.Model({"anchor": anchor, "positive": positive}, both)


def load():
    rng = np.random.default_rng(0)
    pattern = rng.normal(size=(96, 16, 16, 3))
    return by_split(
        {
            "anchor": (pattern + rng.normal(0, 0.3, pattern.shape)).astype("float32"),
            "positive": (pattern + rng.normal(0, 0.3, pattern.shape)).astype("float32"),
        }
    )
