"""Digits by random Fourier features and a linear layer with the hinge loss."""

import functools

import numpy as np


def hinge(ops, outputs, batch):
    sign = 2 * ops.one_hot(batch["label"], 4) - 1
    return ops.mean(ops.maximum(1 - sign * outputs, 0), axis=-1)


def accuracy(ops, outputs, batch):
    return ops.cast(ops.equal(ops.argmax(outputs, -1), ops.cast(batch["label"], "int32")), "float32")


@functools.cache
def fourier_class(keras):
    class RandomFourierFeatures(keras.layers.Layer):
        def __init__(self, size, scale, **options):
            super().__init__(**options)
            self.size, self.scale = size, scale

        def build(self, input_shape):
            wide = keras.initializers.RandomNormal(stddev=1 / self.scale)
            shape = (input_shape[-1], self.size)
            self.kernel = self.add_weight(shape=shape, initializer=wide, trainable=False, name="kernel")
            turned = keras.initializers.RandomUniform(0.0, 2 * np.pi)
            self.bias = self.add_weight(shape=(self.size,), initializer=turned, trainable=False, name="bias")
            super().build(input_shape)

        def call(self, x):
            return keras.ops.cos(keras.ops.matmul(x, self.kernel) + self.bias) * np.sqrt(2 / self.size)

    return RandomFourierFeatures


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [keras.Input(input_shape), layers.Flatten(), fourier_class(keras)(64, 10.0), layers.Dense(outputs.units)]
    )
