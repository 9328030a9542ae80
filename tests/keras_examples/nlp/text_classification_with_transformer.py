"""Reviews by one block of attention."""

from tests.keras_examples.layers import encoder, positions


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = encoder(keras, positions(keras)(layers.Embedding(64, 16)(tokens)), units=16)
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
    x = layers.Dropout(0.1)(layers.Dense(10, activation="relu")(x))
    return keras.Model(tokens, layers.Dense(num_classes)(x))
