"""Digits of a given class by a GAN."""

from keras import ops, random

from tests.keras_examples.steps import mean, update


class Cgan:
    def __init__(self, latent=8, classes=4):
        self.latent = latent
        self.classes = classes

    def build(self, keras, inputs):
        layers = keras.layers
        height, width, _ = inputs["image"].shape
        image = keras.Input(inputs["image"].shape, name="image")
        label = keras.Input(inputs["label"].shape, dtype="int32", name="label")
        one_hot = layers.CategoryEncoding(self.classes, output_mode="one_hot")(label)
        planes = layers.Reshape((1, 1, self.classes))(one_hot)
        labelled = layers.Concatenate()([image, layers.UpSampling2D((height, width))(planes)])
        scores = keras.Sequential(
            [
                layers.Conv2D(8, 3, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(16, 3, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.GlobalMaxPooling2D(),
                layers.Dense(1),
            ]
        )
        self.critic = keras.Model({"image": image, "label": label}, scores(labelled))
        self.generator = keras.Sequential(
            [
                keras.Input((self.latent + self.classes,)),
                layers.Dense(4 * 4 * 12),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Reshape((4, 4, 12)),
                layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(1, 7, padding="same", activation="sigmoid"),
            ]
        )
        for name in ("critic", "generator"):
            optimizer = keras.optimizers.Adam(3e-4)
            optimizer.build(getattr(self, name).trainable_variables)
            setattr(self, name + "_optimizer", optimizer)

    def codes(self, batch, rng):
        noise = random.normal((len(batch["weight"]), self.latent), seed=rng)
        return ops.concatenate([noise, ops.one_hot(batch["label"], self.classes)], axis=-1)

    def train_step(self, state, batch, rng):
        codes = self.codes(batch, rng)
        fake, _ = self.generator.stateless_call(*state["generator"], codes)

        def critic_loss(trainable, others):
            real, _ = self.critic.stateless_call(trainable, others, {"image": batch["image"], "label": batch["label"]})
            false, _ = self.critic.stateless_call(trainable, others, {"image": fake, "label": batch["label"]})
            return mean((ops.softplus(real) + ops.softplus(-false))[:, 0], batch) / 2, others

        def generator_loss(trainable, others):
            fake, others = self.generator.stateless_call(trainable, others, codes)
            false, _ = self.critic.stateless_call(*state["critic"], {"image": fake, "label": batch["label"]})
            return mean(ops.softplus(false)[:, 0], batch), others

        state, critic = update(self, state, "critic", critic_loss)
        state, loss = update(self, state, "generator", generator_loss)
        return state, {"loss": loss, "critic": critic}

    def evaluate(self, state, batch, rng):
        fake, _ = self.generator.stateless_call(*state["generator"], self.codes(batch, rng))
        false, _ = self.critic.stateless_call(*state["critic"], {"image": fake, "label": batch["label"]})
        return {"loss": ops.softplus(false)[:, 0]}
