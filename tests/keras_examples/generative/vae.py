"""Digits by a variational autoencoder."""

import functools

import numpy as np
from keras import ops

from tests.keras_examples import data
from tests.keras_examples.steps import mean, update


class Vae:
    def build(self, keras, inputs):
        layers = keras.layers
        image = keras.Input(inputs["image"].shape)
        x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(image)
        x = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(x)
        code = layers.Dense(4)(layers.Dense(16, activation="relu")(layers.Flatten()(x)))
        latent = Sample(keras)(code)
        x = layers.Reshape((4, 4, 8))(layers.Dense(4 * 4 * 8, activation="relu")(latent))
        x = layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(x)
        x = layers.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same")(x)
        pixels = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
        self.model = keras.Model(image, [code, pixels])
        self.model_optimizer = keras.optimizers.Adam()
        self.model_optimizer.build(self.model.trainable_variables)

    def losses(self, state, batch):
        (code, pixels), others = self.model.stateless_call(*state, batch["image"], training=True)
        center, log_variance = ops.split(code, 2, axis=-1)
        pixels = ops.clip(pixels, 1e-6, 1 - 1e-6)
        nats = -batch["image"] * ops.log(pixels) - (1 - batch["image"]) * ops.log(1 - pixels)
        divergence = -0.5 * ops.sum(1 + log_variance - ops.square(center) - ops.exp(log_variance), axis=-1)
        return ops.sum(nats, axis=(1, 2, 3)), divergence, others

    def train_step(self, state, batch, rng):
        del rng

        def loss(trainable, others):
            reconstruction, divergence, others = self.losses((trainable, others), batch)
            return mean(reconstruction + divergence, batch), others

        reconstruction, divergence, _ = self.losses(state["model"], batch)
        state, total = update(self, state, "model", loss)
        return state, {"loss": total, "reconstruction": reconstruction, "divergence": divergence}

    def evaluate(self, state, batch, rng):
        del rng
        reconstruction, divergence, _ = self.losses(state["model"], batch)
        loss = reconstruction + divergence
        return {"loss": loss, "reconstruction": reconstruction, "divergence": divergence}


@functools.cache
def sample_class(keras):
    class SampleCode(keras.layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.generator = keras.random.SeedGenerator(1)

        def call(self, code):
            center, log_variance = keras.ops.split(code, 2, axis=-1)
            noise = keras.random.normal(keras.ops.shape(center), seed=self.generator)
            return center + keras.ops.exp(0.5 * log_variance) * noise

    return SampleCode


def Sample(keras):  # noqa: N802 - a layer's name
    return sample_class(keras)()


def load():
    splits = data.images()
    for arrays in splits.values():
        arrays["image"] = np.clip(arrays["image"], 0, 1)
    return splits
