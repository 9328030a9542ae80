"""Columns of a table by a small network."""

from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Structured data classification from scratch",
    trains="Adam; binary cross-entropy; accuracy",
    data="columns()",
    overrides=["optimizer=adam", "task=binary", "task.from_logits=false", "dataset.standardize=true"],
    simplified=[
        "columns of words are numbers already",
        "columns of numbers are standardized by dataset.standardize, not by layers",
    ],
)


def make_model(keras, inputs, outputs):
    layers = keras.layers
    numbers = keras.Input(inputs["numbers"].shape, name="numbers")
    kind = keras.Input(inputs["kind"].shape, dtype="int32", name="kind")
    encoded = layers.Flatten()(layers.Embedding(8, 8, embeddings_initializer="identity", trainable=False)(kind))
    x = layers.Concatenate()([numbers, encoded])
    x = layers.Dropout(0.5)(layers.Dense(32, activation="relu")(x))
    return keras.Model({"numbers": numbers, "kind": kind}, layers.Dense(outputs.units, activation="sigmoid")(x))
