"""Layers that several examples write themselves. Each works with both versions of Keras."""

import functools


@functools.cache
def positions_class(keras):
    """Returns the class of `positions`."""

    class AddPositions(keras.layers.Layer):
        """Adds a learned vector to each token, (batch, tokens, size)."""

        def build(self, input_shape):
            normal = keras.initializers.RandomNormal(stddev=0.02)
            self.embedding = self.add_weight(shape=tuple(input_shape[1:]), initializer=normal, name="embedding")
            super().build(input_shape)

        def call(self, tokens):
            return tokens + self.embedding

    return AddPositions


def positions(keras):
    """Returns a layer that adds a learned vector to each token."""
    return positions_class(keras)()


def encoder(keras, x, heads=2, units=32, dropout=0.1, causal=False):
    """Returns tokens after a block of attention and a network per token, each with a residual and a norm after it."""
    layers = keras.layers
    size = x.shape[-1]
    attended = layers.MultiHeadAttention(heads, size // heads)(x, x, use_causal_mask=causal)
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(dropout)(attended))
    inner = layers.Dense(size)(layers.Dense(units, activation="relu")(x))
    return layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(dropout)(inner))
