"""Reviews by a convnet over embedded words."""


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = layers.Dropout(0.5)(layers.Embedding(64, 16)(tokens))
    x = layers.Conv1D(16, 7, strides=3, activation="relu")(x)
    x = layers.Conv1D(16, 7, strides=3, activation="relu")(x)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dropout(0.5)(layers.Dense(16, activation="relu")(x))
    return keras.Model(tokens, layers.Dense(outputs.units, activation="sigmoid")(x))
