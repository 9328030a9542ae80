"""Clothes by a Wasserstein GAN with a penalty on the critic's slope."""

from functools import partial

import jax
from keras import ops, random

from tests.keras_examples.steps import mean, update


class Wgan:
    def __init__(self, latent=8, critic_steps=3, penalty=10.0):
        self.latent = latent
        self.critic_steps = critic_steps
        self.penalty = penalty

    def build(self, keras, inputs):
        layers = keras.layers
        self.critic = keras.Sequential(
            [
                keras.Input(inputs["image"].shape),
                layers.Conv2D(8, 5, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(16, 5, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Dropout(0.3),
                layers.Flatten(),
                layers.Dense(1, use_bias=False),
            ]
        )
        self.generator = keras.Sequential(
            [
                keras.Input((self.latent,)),
                layers.Dense(4 * 4 * 8, use_bias=False),
                layers.BatchNormalization(),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Reshape((4, 4, 8)),
                layers.UpSampling2D(2),
                layers.Conv2D(8, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.UpSampling2D(2),
                layers.Conv2D(1, 3, padding="same", activation="tanh"),
            ]
        )
        for name in ("critic", "generator"):
            optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5, beta_2=0.9)
            optimizer.build(getattr(self, name).trainable_variables)
            setattr(self, name + "_optimizer", optimizer)

    def train_step(self, state, batch, rng):
        keys = jax.random.split(rng, self.critic_steps + 1)
        for key in keys[1:]:
            state, critic = update(self, state, "critic", partial(self.critic_loss, state, batch, key))

        def generator_loss(trainable, others):
            fake, others = self.fake((trainable, others), batch, keys[0])
            return -mean(self.score(state["critic"], fake), batch), others

        state, loss = update(self, state, "generator", generator_loss)
        return state, {"loss": loss, "critic": critic}

    def critic_loss(self, state, batch, key, trainable, others):
        of_noise, of_share = jax.random.split(key)
        fake, _ = self.fake(state["generator"], batch, of_noise)
        share = random.normal((len(fake), 1, 1, 1), seed=of_share)
        between = batch["image"] + share * (fake - batch["image"])
        slope = jax.grad(lambda image: ops.sum(self.score((trainable, others), image)))(between)
        length = ops.sqrt(ops.sum(ops.square(slope), axis=(1, 2, 3)) + 1e-12)
        gap = self.score((trainable, others), fake) - self.score((trainable, others), batch["image"])
        return mean(gap + self.penalty * ops.square(length - 1), batch), others

    def fake(self, model, batch, key):
        noise = random.normal((len(batch["weight"]), self.latent), seed=key)
        return self.generator.stateless_call(*model, noise, training=True)

    def score(self, model, image):
        return self.critic.stateless_call(*model, image, training=True)[0][:, 0]

    def evaluate(self, state, batch, rng):
        noise = random.normal((len(batch["weight"]), self.latent), seed=rng)
        fake, _ = self.generator.stateless_call(*state["generator"], noise)
        return {"loss": -self.critic.stateless_call(*state["critic"], fake)[0][:, 0]}
