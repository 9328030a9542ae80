"""Letters of a picture by convolutions and LSTMs, with CTC."""


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    steps, height = input_shape
    picture = keras.Input(input_shape)
    x = layers.Reshape((steps, height, 1))(picture)
    for filters in (4, 8):
        x = layers.Conv2D(filters, 3, activation="relu", kernel_initializer="he_normal", padding="same")(x)
        x = layers.MaxPooling2D((1, 2))(x)
    x = layers.Reshape((steps, x.shape[-2] * x.shape[-1]))(x)
    x = layers.Dropout(0.2)(layers.Dense(16, activation="relu")(x))
    for units in (16, 8):
        x = layers.Bidirectional(layers.LSTM(units, return_sequences=True, dropout=0.25))(x)
    return keras.Model(picture, layers.Dense(outputs.units)(x))


def loss(ops, outputs, batch):
    letters = batch["label"]
    steps = ops.zeros_like(letters[:, 0]) + outputs.shape[1]
    return ops.keras.ops.ctc_loss(letters, outputs, ops.sum(letters != 0, axis=-1), steps)
