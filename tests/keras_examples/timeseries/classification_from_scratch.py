"""Series of one sensor by a fully convolutional network."""


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    series = keras.Input(input_shape)
    x = series
    for _ in range(3):
        x = layers.BatchNormalization()(layers.Conv1D(16, 3, padding="same")(x))
        x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(series, layers.Dense(num_classes)(x))
