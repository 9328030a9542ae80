"""Digits by a small convnet."""

import numpy as np

from tests.keras_examples.spec import Spec, by_split

SPEC = Spec(title="Simple MNIST convnet", overrides=["optimizer=adam", "task.classes=4"])


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(8, 3, activation="relu", name="conv1"),
            layers.MaxPooling2D(2),
            layers.Conv2D(16, 3, activation="relu", name="conv2"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(num_classes, name="logits"),
        ]
    )


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, 96).astype("int32")
    image = rng.normal(label[:, None, None, None] / 4, 0.3, (96, 16, 16, 1)).astype("float32")
    return by_split({"image": image, "label": label})
