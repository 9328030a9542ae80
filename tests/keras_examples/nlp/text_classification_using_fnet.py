"""Pairs of texts by Fourier transforms in place of attention."""

import functools

from tests.keras_examples.layers import positions


@functools.cache
def fourier_class(keras):
    class Fourier(keras.layers.Layer):
        def call(self, x):
            return keras.ops.fft2((x, keras.ops.zeros_like(x)))[0]

    return Fourier


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = positions(keras)(layers.Embedding(64, 16)(tokens))
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Add()([x, fourier_class(keras)()(x)]))
        inner = layers.Dense(16)(layers.Dense(32, activation="relu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, inner]))
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(tokens, layers.Dense(outputs.units, activation="sigmoid")(x))
