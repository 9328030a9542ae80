"""Masks of people by dilated convolutions at several scales."""


def make_model(keras, input_shape, outputs):
    layers = keras.layers

    def block(x, filters=8, size=3, rate=1):
        x = layers.Conv2D(filters, size, dilation_rate=rate, padding="same", use_bias=False)(x)
        return layers.ReLU()(layers.BatchNormalization()(x))

    image = keras.Input(input_shape)
    early = layers.MaxPooling2D(2)(block(image))
    late = layers.MaxPooling2D(2)(block(early, 16))
    pooled = block(layers.AveragePooling2D(4)(late), size=1)
    pooled = layers.UpSampling2D(4, interpolation="bilinear")(pooled)
    scales = [pooled, block(late, size=1), block(late, rate=2), block(late, rate=3)]
    x = block(layers.Concatenate()(scales), size=1)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Concatenate()([x, block(early, 4, size=1)])
    x = layers.UpSampling2D(2, interpolation="bilinear")(block(block(x)))
    return keras.Model(image, layers.Conv2D(outputs.units, 1, padding="same")(x))
