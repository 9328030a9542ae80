"""Films, as features of their frames, by one block of attention."""

from tests.keras_examples.layers import encoder, positions


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    frames = keras.Input(input_shape)
    x = encoder(keras, positions(keras)(frames), heads=1, units=8)
    x = layers.Dropout(0.5)(layers.GlobalMaxPooling1D()(x))
    return keras.Model(frames, layers.Dense(num_classes)(x))
