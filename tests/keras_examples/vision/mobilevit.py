"""Images by convolutions with a block of attention over patches."""

from tests.keras_examples.layers import encoder


def make_model(keras, input_shape, num_classes):
    layers = keras.layers

    def bottleneck(x, filters, strides=1):
        inner = layers.Activation("swish")(layers.BatchNormalization()(layers.Conv2D(16, 1, use_bias=False)(x)))
        inner = layers.DepthwiseConv2D(3, strides=strides, padding="same", use_bias=False)(inner)
        inner = layers.Activation("swish")(layers.BatchNormalization()(inner))
        inner = layers.BatchNormalization()(layers.Conv2D(filters, 1, use_bias=False)(inner))
        if strides == 1 and x.shape[-1] == filters:
            inner = layers.Add()([x, inner])
        return inner

    image = keras.Input(input_shape)
    x = layers.Rescaling(1.0 / 255)(image)
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="swish")(x)
    x = bottleneck(bottleneck(x, 8), 8, strides=2)
    near = layers.Conv2D(12, 1, activation="swish")(layers.Conv2D(8, 3, padding="same", activation="swish")(x))
    tokens = encoder(keras, layers.Reshape((16, 12))(near), units=24)
    folded = layers.Conv2D(8, 1, activation="swish")(layers.Reshape((4, 4, 12))(tokens))
    x = layers.Conv2D(8, 3, padding="same", activation="swish")(layers.Concatenate()([x, folded]))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(16, 1, activation="swish")(x))
    return keras.Model(image, layers.Dense(num_classes)(x))
