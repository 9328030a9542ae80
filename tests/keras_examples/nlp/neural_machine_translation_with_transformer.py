"""Sentences translated by an encoder and a decoder of attention."""

from tests.keras_examples.layers import encoder, positions


def make_model(keras, inputs, outputs):
    layers = keras.layers

    def normed(x, added):
        return layers.LayerNormalization()(layers.Add()([x, added]))

    def embedded(tokens):
        return positions(keras)(layers.Embedding(24, 16)(tokens))

    source = keras.Input(inputs["source"].shape, dtype="int32", name="source")
    target = keras.Input(inputs["target"].shape, dtype="int32", name="target")
    memory = encoder(keras, embedded(source), heads=4, dropout=0.0)
    x = embedded(target)
    x = normed(x, layers.MultiHeadAttention(4, 4)(x, x, use_causal_mask=True))
    x = normed(x, layers.MultiHeadAttention(4, 4)(x, memory))
    x = normed(x, layers.Dense(16)(layers.Dense(32, activation="relu")(x)))
    x = layers.Dense(outputs.units)(layers.Dropout(0.5)(x))
    return keras.Model({"source": source, "target": target}, x)
