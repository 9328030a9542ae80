"""Columns of categories by attention, joined with numbers."""

from tests.keras_examples import data
from tests.keras_examples.layers import encoder, positions


def last_encoder(keras, x, heads=2, units=32, dropout=0.1):
    """Returns what `encoder` returns, but its last norm adds no beta."""
    layers = keras.layers
    size = x.shape[-1]
    attended = layers.MultiHeadAttention(heads, size // heads)(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(dropout)(attended))
    inner = layers.Dense(size)(layers.Dense(units, activation="relu")(x))
    return layers.LayerNormalization(epsilon=1e-6, center=False)(x + layers.Dropout(dropout)(inner))


def make_model(keras, inputs, outputs):
    layers = keras.layers
    numbers = keras.Input(inputs["numbers"].shape, name="numbers")
    kind = keras.Input(inputs["kind"].shape, dtype="int32", name="kind")
    x = positions(keras)(layers.Embedding(8, 8)(kind))
    x = last_encoder(keras, encoder(keras, x, units=16), units=16)
    numbers_norm = layers.LayerNormalization(epsilon=1e-6, center=False)
    x = layers.Concatenate()([layers.Flatten()(x), numbers_norm(numbers)])
    for units in (32, 16):
        x = layers.Dense(units, activation="selu")(layers.BatchNormalization()(x))
        x = layers.Dropout(0.2)(x)
    return keras.Model({"numbers": numbers, "kind": kind}, layers.Dense(outputs.units, activation="sigmoid")(x))


def load():
    splits = data.columns()
    for arrays in splits.values():
        arrays["importance"] = (0.5 + arrays["label"]).astype("float32")
    return splits
