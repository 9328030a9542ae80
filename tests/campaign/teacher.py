"""Writes the teacher of the network `taught`: `python -m tests.campaign.teacher FILE`. Imports Keras."""

from __future__ import annotations

import sys

import keras

# Examples of digits, and their classes.
SHAPE, CLASSES = (8, 8, 1), 10


def main() -> None:
    """Writes a classifier with layers that act in another way in training."""
    keras.utils.set_random_seed(2)
    image = keras.Input(SHAPE)
    x = keras.layers.Flatten()(image)
    x = keras.layers.Dense(32, activation="tanh", name="wide")(x)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Dropout(0.5)(x)
    keras.Model(image, keras.layers.Dense(CLASSES, name="out")(x)).save(sys.argv[1])


if __name__ == "__main__":
    main()
