"""Reviews by two bidirectional LSTMs."""


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = layers.Embedding(64, 16)(tokens)
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(8))(x)
    return keras.Model(tokens, layers.Dense(outputs.units, activation="sigmoid")(x))
