"""Images by a compact convolutional transformer with sequence pooling."""


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Rescaling(1.0 / 255)(image)
    for filters in (8, 16):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False, activation="relu")(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.Reshape((16, 16))(x)
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-5)(x)
        x = layers.Add()([layers.MultiHeadAttention(2, 8, dropout=0.1)(normed, normed), x])
        inner = layers.LayerNormalization(epsilon=1e-5)(x)
        for units in (16, 16):
            inner = layers.Dropout(0.1)(layers.Dense(units, activation="gelu")(inner))
        x = layers.Add()([inner, x])
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    share = layers.Softmax(axis=1)(layers.Dense(1)(x))
    pooled = layers.Flatten()(layers.Dot(axes=1)([share, x]))
    return keras.Model(image, layers.Dense(num_classes)(pooled))
