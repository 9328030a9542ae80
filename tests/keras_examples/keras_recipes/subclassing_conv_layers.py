"""Digits by a convolution that standardizes its kernel."""

import functools


@functools.cache
def standardized_class(keras):
    class StandardizedConv2D(keras.layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            kernel = keras.ops.convert_to_tensor(kernel)
            center, variance = keras.ops.moments(kernel, axes=(0, 1, 2), keepdims=True)
            kernel = (kernel - center) / keras.ops.sqrt(variance + 1e-10)
            return super().convolution_op(inputs, kernel)

    return StandardizedConv2D


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    standardized = standardized_class(keras)
    return keras.Sequential(
        [
            keras.Input(input_shape),
            standardized(8, 3, activation="relu"),
            layers.MaxPooling2D(2),
            standardized(16, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(num_classes),
        ]
    )
