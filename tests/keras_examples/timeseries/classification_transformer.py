"""Series of one sensor by blocks of attention."""


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    series = keras.Input(input_shape)
    x = series
    for _ in range(2):
        attended = layers.MultiHeadAttention(2, 8, dropout=0.25)(x, x)
        x = layers.LayerNormalization(epsilon=1e-6)(layers.Dropout(0.25)(attended)) + x
        inner = layers.Dropout(0.25)(layers.Conv1D(4, 1, activation="relu")(x))
        inner = layers.Conv1D(input_shape[-1], 1)(inner)
        x = layers.LayerNormalization(epsilon=1e-6)(inner) + x
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(0.4)(layers.Dense(16, activation="relu")(x))
    return keras.Model(series, layers.Dense(num_classes)(x))
