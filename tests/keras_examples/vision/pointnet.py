"""Clouds of points by two learned transforms with an orthogonal penalty."""

import numpy as np

from tests.keras_examples.spec import by_split


def make_model(keras, input_shape, num_classes):
    layers = keras.layers

    def orthogonal(x):
        size = int(np.sqrt(x.shape[-1]))
        x = keras.ops.reshape(x, (-1, size, size))
        gap = keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1))) - keras.ops.eye(size)
        return 0.001 * keras.ops.sum(keras.ops.square(gap))

    def block(layer, x):
        return layers.Activation("relu")(layers.BatchNormalization(momentum=0.0)(layer(x)))

    def turned(x, size):
        net = layers.GlobalMaxPooling1D()(block(layers.Conv1D(16, 1), block(layers.Conv1D(8, 1), x)))
        net = block(layers.Dense(8), net)
        identity = keras.initializers.Constant(np.eye(size).flatten())
        matrix = layers.Dense(
            size * size, kernel_initializer="zeros", bias_initializer=identity, activity_regularizer=orthogonal
        )(net)
        return layers.Dot(axes=(2, 1))([x, layers.Reshape((size, size))(matrix)])

    points = keras.Input(input_shape)
    x = block(layers.Conv1D(8, 1), turned(points, 3))
    x = block(layers.Conv1D(16, 1), turned(x, 8))
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dropout(0.3)(block(layers.Dense(16), x))
    return keras.Model(points, layers.Dense(num_classes)(x))


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 96).astype("int32")
    points = rng.normal(size=(96, 32, 3)) * (1 + np.eye(3)[label])[:, None]
    return by_split({"points": points.astype("float32"), "label": label})
