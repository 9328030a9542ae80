"""Columns weighted by gated networks."""

from tests.keras_examples import data


def make_model(keras, inputs, outputs):
    layers = keras.layers
    units = 8

    def gated(x):
        inner = layers.Dropout(0.15)(layers.Dense(units)(layers.Dense(units, activation="elu")(x)))
        gate = layers.Multiply()([layers.Dense(units)(inner), layers.Dense(units, activation="sigmoid")(inner)])
        if x.shape[-1] != units:
            x = layers.Dense(units)(x)
        return layers.LayerNormalization()(layers.Add()([x, gate]))

    numbers = keras.Input(inputs["numbers"].shape, name="numbers")
    kind = keras.Input(inputs["kind"].shape, dtype="int32", name="kind")
    parts = [layers.Dense(units)(numbers), layers.Flatten()(layers.Embedding(8, units // 2)(kind))]
    share = layers.Dense(len(parts), activation="softmax")(gated(layers.Concatenate()(parts)))
    stacked = layers.Reshape((len(parts), units))(layers.Concatenate()([gated(part) for part in parts]))
    x = layers.Dot(axes=1)([share, stacked])
    return keras.Model({"numbers": numbers, "kind": kind}, layers.Dense(outputs.units, activation="sigmoid")(x))


def load():
    splits = data.columns()
    for arrays in splits.values():
        arrays["importance"] = (0.5 + arrays["label"]).astype("float32")
    return splits
