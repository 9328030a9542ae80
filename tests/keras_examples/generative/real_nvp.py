"""Density of points by invertible couplings."""

import numpy as np

from tests.keras_examples.spec import by_split


def loss(ops, outputs, batch):
    del batch
    latent, log_determinant = outputs[:, :2], outputs[:, 2]
    return 0.5 * ops.sum(ops.square(latent), axis=-1) + 1.8378771 - log_determinant


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    decay = keras.regularizers.L2(0.01)

    def network(x, activation):
        for _ in range(2):
            x = layers.Dense(16, activation="relu", kernel_regularizer=decay)(x)
        return layers.Dense(1, activation=activation, kernel_regularizer=decay)(x)

    points = keras.Input(input_shape)
    sides = [one_of(keras, place)(points) for place in (0, 1)]
    scales = []
    for coupling in range(4):
        kept, moved = sides[coupling % 2], sides[1 - coupling % 2]
        scale = network(kept, "tanh")
        moved = layers.Add()(
            [layers.Multiply()([moved, layers.Activation("exponential")(scale)]), network(kept, None)]
        )
        sides[1 - coupling % 2] = moved
        scales.append(scale)
    assert outputs.units == 3
    return keras.Model(points, layers.Concatenate()([*sides, layers.Add()(scales)]))


def one_of(keras, place):
    """Selects one coordinate of a point."""
    column = keras.initializers.Constant(np.eye(2)[:, place : place + 1])
    return keras.layers.Dense(1, use_bias=False, trainable=False, kernel_initializer=column)


def load():
    rng = np.random.default_rng(0)
    angle = np.pi * rng.random(96)
    upper = rng.random(96) < 0.5
    points = np.stack([np.cos(angle) + 0.5 - upper, np.sin(angle) * (2 * upper - 1)], axis=-1)
    return by_split({"points": (points + rng.normal(0, 0.1, points.shape)).astype("float32")})
