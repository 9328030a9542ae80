"""Text by one causal block of attention."""

from tests.keras_examples.layers import encoder, positions


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = encoder(keras, positions(keras)(layers.Embedding(outputs.units, 16)(tokens)), causal=True)
    return keras.Model(tokens, layers.Dense(outputs.units)(x))
