"""Flowers by a network that removes noise, with an averaged copy of it."""

import jax
from keras import ops, random

from tests.keras_examples.steps import mean, update


class Ddim:
    def __init__(self, decay=0.999):
        self.decay = decay

    def build(self, keras, inputs):
        self.network = network(keras, inputs["image"].shape)
        self.averaged = network(keras, inputs["image"].shape)
        for average, weight in zip(self.averaged.weights, self.network.weights, strict=True):
            average.assign(weight)
        self.network_optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
        self.network_optimizer.build(self.network.trainable_variables)

    def losses(self, name, model, batch, rng, training):
        of_time, of_noise = jax.random.split(rng)
        image = batch["image"]
        time = random.uniform((len(image), 1, 1, 1), seed=of_time)
        angle = ops.arccos(0.95) + time * (ops.arccos(0.02) - ops.arccos(0.95))
        signal, rate = ops.cos(angle), ops.sin(angle)
        noise = random.normal(image.shape, seed=of_noise)
        noisy = ops.concatenate([signal * image + rate * noise, ops.broadcast_to(rate**2, image.shape)], axis=-1)
        predicted, others = getattr(self, name).stateless_call(*model, noisy, training=training)
        restored = (signal * image + rate * noise - rate * predicted) / signal
        of_image = ops.mean(ops.abs(restored - image), axis=(1, 2, 3))
        return ops.mean(ops.abs(predicted - noise), axis=(1, 2, 3)), of_image, others

    def train_step(self, state, batch, rng):
        def loss(trainable, others):
            of_noise, _, others = self.losses("network", (trainable, others), batch, rng, True)
            return mean(of_noise, batch), others

        _, of_image, _ = self.losses("network", state["network"], batch, rng, True)
        state, total = update(self, state, "network", loss)
        pairs = zip(state["averaged"].trainable, state["network"].trainable, strict=True)
        averages = [self.decay * old + (1 - self.decay) * new for old, new in pairs]
        averaged = state["averaged"]._replace(trainable=averages, non_trainable=state["network"].non_trainable)
        return {**state, "averaged": averaged}, {"loss": total, "image_loss": of_image}

    def evaluate(self, state, batch, rng):
        of_noise, of_image, _ = self.losses("averaged", state["averaged"], batch, rng, False)
        return {"loss": of_noise, "image_loss": of_image}


def network(keras, shape):
    layers = keras.layers
    noisy = keras.Input((*shape[:2], 2 * shape[2]))
    x = start = layers.Conv2D(8, 1)(noisy)
    x = layers.Conv2D(8, 3, padding="same", activation="swish")(layers.BatchNormalization(center=False)(x))
    x = layers.AveragePooling2D(2)(x)
    x = layers.Conv2D(16, 3, padding="same", activation="swish")(x)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Concatenate()([x, start])
    return keras.Model(noisy, layers.Conv2D(shape[2], 1, kernel_initializer="zeros")(x))
