"""Images by depthwise and pointwise convolutions over patches."""


def make_model(keras, input_shape, num_classes):
    layers = keras.layers

    def finished(x):
        return layers.BatchNormalization()(layers.Activation("gelu")(x))

    image = keras.Input(input_shape)
    x = layers.Rescaling(1.0 / 255)(image)
    x = finished(layers.Conv2D(16, 2, strides=2)(x))
    for _ in range(2):
        x = layers.Add()([finished(layers.DepthwiseConv2D(3, padding="same")(x)), x])
        x = finished(layers.Conv2D(16, 1)(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(num_classes)(x))
