"""Windows of a series by a convolutional autoencoder."""


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv1D(16, 7, padding="same", strides=2, activation="relu"),
            layers.Dropout(0.2),
            layers.Conv1D(8, 7, padding="same", strides=2, activation="relu"),
            layers.Conv1DTranspose(8, 7, padding="same", strides=2, activation="relu"),
            layers.Dropout(0.2),
            layers.Conv1DTranspose(16, 7, padding="same", strides=2, activation="relu"),
            layers.Conv1DTranspose(outputs.units, 7, padding="same"),
        ]
    )
