"""Cats and dogs by a small Xception."""


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Rescaling(1.0 / 255)(image)
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = previous = layers.Activation("relu")(layers.BatchNormalization()(x))
    for size in (8, 16):
        for _ in range(2):
            x = layers.SeparableConv2D(size, 3, padding="same")(layers.Activation("relu")(x))
            x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        x = previous = layers.add([x, layers.Conv2D(size, 1, strides=2, padding="same")(previous)])
    x = layers.SeparableConv2D(16, 3, padding="same")(x)
    x = layers.GlobalAveragePooling2D()(layers.Activation("relu")(layers.BatchNormalization()(x)))
    return keras.Model(image, layers.Dense(outputs.units)(layers.Dropout(0.25)(x)))
