"""Images by a transformer over patches."""

from tests.keras_examples.layers import positions


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Reshape((16, 16))(layers.Conv2D(16, 4, strides=4)(image))
    x = positions(keras)(x)
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([layers.MultiHeadAttention(4, 4, dropout=0.1)(normed, normed), x])
        inner = layers.LayerNormalization(epsilon=1e-6)(x)
        for units in (32, 16):
            inner = layers.Dropout(0.1)(layers.Dense(units, activation="gelu")(inner))
        x = layers.Add()([inner, x])
    x = layers.Dropout(0.5)(layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x)))
    x = layers.Dropout(0.5)(layers.Dense(32, activation="gelu")(x))
    return keras.Model(image, layers.Dense(num_classes)(x))
