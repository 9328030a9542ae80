"""Images by attention to two small memories instead of to the other patches."""

from tests.keras_examples.layers import positions


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = positions(keras)(layers.Reshape((16, 16))(layers.Conv2D(16, 4, strides=4)(image)))
    for _ in range(2):
        start = x
        x = layers.LayerNormalization(epsilon=1e-5)(x)
        near = layers.Softmax(axis=1)(layers.Dense(8)(layers.Dense(32)(x)))
        x = layers.Dropout(0.2)(layers.Dense(16)(layers.Dense(32)(near)))
        x = previous = layers.Add()([x, start])
        x = layers.Dense(32, activation="gelu")(layers.LayerNormalization(epsilon=1e-5)(x))
        x = layers.Add()([layers.Dropout(0.2)(layers.Dense(16)(x)), previous])
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(image, layers.Dense(num_classes)(x))
