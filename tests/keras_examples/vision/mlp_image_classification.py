"""Images by MLPs over patches and over channels."""


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Conv2D(16, 4, strides=4)(image)
    x = layers.Reshape((16, 16))(x)
    for _ in range(2):
        over_patches = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        over_patches = layers.Dense(16)(layers.Dense(32, activation="gelu")(over_patches))
        x = layers.Permute((2, 1))(over_patches) + x
        over_channels = layers.LayerNormalization()(x)
        x = layers.Dense(16)(layers.Dense(32, activation="gelu")(over_channels)) + x
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(image, layers.Dense(num_classes)(x))
