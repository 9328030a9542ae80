"""Faces by a convolutional GAN."""

import jax
from keras import ops, random

from tests.keras_examples.steps import mean, update


class Dcgan:
    def __init__(self, latent=8):
        self.latent = latent

    def build(self, keras, inputs):
        layers = keras.layers
        self.critic = keras.Sequential(
            [
                keras.Input(inputs["image"].shape),
                layers.Conv2D(8, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(16, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Flatten(),
                layers.Dropout(0.2),
                layers.Dense(1),
            ]
        )
        self.generator = keras.Sequential(
            [
                keras.Input((self.latent,)),
                layers.Dense(4 * 4 * 8),
                layers.Reshape((4, 4, 8)),
                layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(3, 5, padding="same", activation="sigmoid"),
            ]
        )
        for name in ("critic", "generator"):
            optimizer = keras.optimizers.Adam(1e-4)
            optimizer.build(getattr(self, name).trainable_variables)
            setattr(self, name + "_optimizer", optimizer)

    def train_step(self, state, batch, rng):
        of_noise, of_labels = jax.random.split(rng)
        noise = random.normal((len(batch["weight"]), self.latent), seed=of_noise)
        shift = 0.05 * random.uniform((2, len(batch["weight"]), 1), seed=of_labels)
        fake, _ = self.generator.stateless_call(*state["generator"], noise)

        def critic_loss(trainable, others):
            real, others = self.critic.stateless_call(trainable, others, batch["image"], training=True)
            false, others = self.critic.stateless_call(trainable, others, fake, training=True)
            both = cross_entropy(1 + shift[0], false) + cross_entropy(shift[1], real)
            return mean(both[:, 0], batch) / 2, others

        def generator_loss(trainable, others):
            fake, others = self.generator.stateless_call(trainable, others, noise)
            false, _ = self.critic.stateless_call(*state["critic"], fake)
            return mean(cross_entropy(0.0, false)[:, 0], batch), others

        state, critic = update(self, state, "critic", critic_loss)
        state, loss = update(self, state, "generator", generator_loss)
        return state, {"loss": loss, "critic": critic}

    def evaluate(self, state, batch, rng):
        noise = random.normal((len(batch["weight"]), self.latent), seed=rng)
        fake, _ = self.generator.stateless_call(*state["generator"], noise)
        false, _ = self.critic.stateless_call(*state["critic"], fake)
        return {"loss": cross_entropy(0.0, false)[:, 0]}


def cross_entropy(label, logit):
    return ops.softplus(logit) - label * logit
