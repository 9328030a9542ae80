"""Columns by a cross network beside a deep one."""


def make_model(keras, inputs, outputs):
    layers = keras.layers
    numbers = keras.Input(inputs["numbers"].shape, name="numbers")
    kind = keras.Input(inputs["kind"].shape, dtype="int32", name="kind")
    embedded = layers.Flatten()(layers.Embedding(8, 3)(kind))
    start = deep = layers.Concatenate()([numbers, embedded])
    cross = start
    for _ in range(2):
        cross = layers.Add()([layers.Multiply()([start, layers.Dense(start.shape[-1])(cross)]), cross])
        deep = layers.BatchNormalization()(layers.Dense(16)(deep))
        deep = layers.Dropout(0.1)(layers.ReLU()(deep))
    joined = layers.Concatenate()([layers.BatchNormalization()(cross), deep])
    return keras.Model({"numbers": numbers, "kind": kind}, layers.Dense(outputs.units)(joined))
