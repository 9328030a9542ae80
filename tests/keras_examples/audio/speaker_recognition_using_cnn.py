"""Speakers by residual convolutions over frequencies."""


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    sound = keras.Input(input_shape)
    x = sound
    for filters, count in ((8, 2), (16, 3)):
        shortcut = layers.Conv1D(filters, 1, padding="same")(x)
        for _ in range(count - 1):
            x = layers.Activation("relu")(layers.Conv1D(filters, 3, padding="same")(x))
        x = layers.Add()([layers.Conv1D(filters, 3, padding="same")(x), shortcut])
        x = layers.MaxPooling1D(2, strides=2)(layers.Activation("relu")(x))
    x = layers.Flatten()(layers.AveragePooling1D(3, strides=3)(x))
    x = layers.Dense(16, activation="relu")(layers.Dense(32, activation="relu")(x))
    return keras.Model(sound, layers.Dense(num_classes)(x))
