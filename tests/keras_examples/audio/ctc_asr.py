"""Speech by convolutions and recurrent layers, with CTC."""


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    steps, bands = input_shape
    sound = keras.Input(input_shape)
    x = layers.Reshape((steps, bands, 1))(sound)
    for _ in range(2):
        x = layers.Conv2D(4, 3, strides=(1, 2), padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Reshape((steps, x.shape[-2] * x.shape[-1]))(x)
    for _ in range(2):
        x = layers.Bidirectional(layers.GRU(8, return_sequences=True))(x)
    x = layers.Dropout(0.5)(layers.Dense(16, activation="relu")(x))
    return keras.Model(sound, layers.Dense(outputs.units)(x))


def loss(ops, outputs, batch):
    letters = batch["label"]
    steps = ops.zeros_like(letters[:, 0]) + outputs.shape[1]
    return ops.keras.ops.ctc_loss(letters, outputs, ops.sum(letters != 0, axis=-1), steps)
