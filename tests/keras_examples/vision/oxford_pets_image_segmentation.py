"""Masks of pets by a U-net of separable convolutions."""


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Conv2D(8, 3, strides=2, padding="same")(image)
    x = previous = layers.Activation("relu")(layers.BatchNormalization()(x))
    for filters in (8, 16):
        for _ in range(2):
            x = layers.SeparableConv2D(filters, 3, padding="same")(layers.Activation("relu")(x))
            x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        x = previous = layers.add([x, layers.Conv2D(filters, 1, strides=2, padding="same")(previous)])
    for filters in (16, 8, 8):
        for _ in range(2):
            x = layers.Conv2DTranspose(filters, 3, padding="same")(layers.Activation("relu")(x))
            x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D(2)(x)
        residual = layers.Conv2D(filters, 1, padding="same")(layers.UpSampling2D(2)(previous))
        x = previous = layers.add([x, residual])
    return keras.Model(image, layers.Conv2D(outputs.units, 3, activation="softmax", padding="same")(x))
