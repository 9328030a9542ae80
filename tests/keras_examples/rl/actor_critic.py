"""The pole of a cart from recorded steps, by an actor and a critic."""

import jax
import numpy as np
from keras import ops

from tests.keras_examples.spec import by_split
from tests.keras_examples.steps import mean, update


class ActorCritic:
    def build(self, keras, inputs):
        layers = keras.layers
        seen = keras.Input(inputs["seen"].shape)
        x = layers.Dense(32, activation="relu")(seen)
        self.model = keras.Model(seen, [layers.Dense(2)(x), layers.Dense(1)(x)])
        self.model_optimizer = keras.optimizers.Adam(0.01)
        self.model_optimizer.build(self.model.trainable_variables)

    def losses(self, trainable, others, batch):
        (logits, value), others = self.model.stateless_call(trainable, others, batch["seen"])
        gap = batch["reward"] - value[:, 0]
        chosen = ops.sum(ops.one_hot(batch["action"], 2) * ops.log_softmax(logits), axis=-1)
        size = ops.abs(gap)
        huber = ops.where(size < 1, 0.5 * ops.square(gap), size - 0.5)
        return -chosen * jax.lax.stop_gradient(gap), huber, others

    def train_step(self, state, batch, rng):
        del rng

        def loss(trainable, others):
            actor, critic, others = self.losses(trainable, others, batch)
            return mean(actor + critic, batch), others

        actor, critic, _ = self.losses(*state["model"], batch)
        state, total = update(self, state, "model", loss)
        return state, {"loss": total, "actor": actor, "critic": critic}

    def evaluate(self, state, batch, rng):
        del rng
        actor, critic, _ = self.losses(*state["model"], batch)
        return {"loss": actor + critic, "critic": critic}


def load():
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(96, 4)).astype("float32")
    action = rng.integers(0, 2, 96).astype("int32")
    reward = (action == (seen[:, 2] > 0)).astype("float32")
    return by_split({"seen": seen, "action": action, "reward": reward})
