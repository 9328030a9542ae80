"""Columns by a linear part beside a deep part."""

import numpy as np

from tests.keras_examples.spec import Spec, by_split

SPEC = Spec(
    title="Structured data learning with wide, deep and cross networks",
    overrides=["optimizer=adam", "task.classes=3"],
    lost=["the cross network", "columns of words are numbers already"],
)


def make_model(keras, inputs, outputs):
    layers = keras.layers
    numbers = keras.Input(inputs["numbers"].shape, name="numbers")
    kind = keras.Input(inputs["kind"].shape, dtype="int32", name="kind")
    embedded = layers.Flatten()(layers.Embedding(8, 4, name="kinds")(kind))
    deep = layers.Concatenate()([numbers, embedded])
    wide = layers.BatchNormalization(name="wide_norm")(deep)
    for block in range(2):
        deep = layers.Dense(16, name=f"deep{block}")(deep)
        deep = layers.BatchNormalization(name=f"deep_norm{block}")(deep)
        deep = layers.Dropout(0.1)(layers.ReLU()(deep))
    joined = layers.Concatenate()([wide, deep])
    return keras.Model({"numbers": numbers, "kind": kind}, layers.Dense(outputs.units, name="logits")(joined))


def load():
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(96, 5)).astype("float32")
    kind = rng.integers(0, 8, (96, 1)).astype("int32")
    label = (numbers[:, 0] > 0).astype("int32") + (kind[:, 0] > 3).astype("int32")
    return by_split({"numbers": numbers, "kind": kind, "label": label})
