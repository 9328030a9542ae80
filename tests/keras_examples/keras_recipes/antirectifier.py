"""Digits by a layer that keeps both signs of its input."""

import functools


@functools.cache
def antirectifier_class(keras):
    class Antirectifier(keras.layers.Layer):
        def build(self, input_shape):
            shape = (2 * input_shape[-1], input_shape[-1])
            self.kernel = self.add_weight(shape=shape, initializer="he_normal", name="kernel")
            super().build(input_shape)

        def call(self, x):
            x = x - keras.ops.mean(x, axis=-1, keepdims=True)
            both = keras.ops.concatenate([keras.ops.relu(x), keras.ops.relu(-x)], axis=-1)
            return keras.ops.matmul(both, self.kernel)

    return Antirectifier


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    antirectifier = antirectifier_class(keras)
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(32),
            antirectifier(),
            layers.Dense(32),
            antirectifier(),
            layers.Dropout(0.5),
            layers.Dense(num_classes),
        ]
    )
