"""Images by a transformer whose attention learns its temperature and leaves out the diagonal."""

import functools

from tests.keras_examples.layers import positions


@functools.cache
def local_attention(keras):
    class LocalAttention(keras.layers.Layer):
        def build(self, input_shape):
            self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")
            super().build(input_shape)

        def call(self, inputs):
            query, key, value = inputs
            tokens = query.shape[-2]
            scores = keras.ops.einsum("bqd,bkd->bqk", query * self.temperature, key)
            scores = scores - 1e9 * keras.ops.eye(tokens)
            return keras.ops.einsum("bqk,bkd->bqd", keras.ops.softmax(scores), value)

    return LocalAttention


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = positions(keras)(layers.Reshape((16, 16))(layers.Conv2D(16, 6, strides=4, padding="same")(image)))
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        heads = [layers.Dense(16)(normed) for _ in range(3)]
        x = layers.Add()([layers.Dense(16)(local_attention(keras)()(heads)), x])
        inner = layers.Dense(32, activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(x))
        x = layers.Add()([layers.Dropout(0.1)(layers.Dense(16)(inner)), x])
    x = layers.Dropout(0.5)(layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x)))
    return keras.Model(image, layers.Dense(num_classes)(layers.Dense(32, activation="gelu")(x)))
