"""Short sentences translated character by character by two LSTMs."""


def make_model(keras, inputs, outputs):
    layers = keras.layers
    source = keras.Input(inputs["source"].shape, dtype="int32", name="source")
    target = keras.Input(inputs["target"].shape, dtype="int32", name="target")
    _, *state = layers.LSTM(24, return_state=True)(layers.Embedding(24, 24)(source))
    x = layers.LSTM(24, return_sequences=True)(layers.Embedding(24, 24)(target), initial_state=state)
    return keras.Model({"source": source, "target": target}, layers.Dense(outputs.units)(x))
