"""Users' classes for `task=step`, as they stand in a module of their own."""

from typing import Any

import jax
from keras import ops, random

DECAY = 0.9


class Line:
    def __init__(self, width: int = 4, broken: str = "") -> None:
        self.width = width
        self.broken = broken

    def build(self, keras: Any, inputs: Any) -> None:
        size = inputs["x"].shape[-1]

        def network() -> Any:
            dense = keras.layers.Dense
            dropout = keras.layers.Dropout(0.5)
            return keras.Sequential([keras.Input((size,)), dense(self.width, "tanh", name="d1"), dropout, dense(1)])

        if self.broken == "other inputs":
            # The first model is the one that is exported.
            self.other = keras.Sequential([keras.Input((size + 1,)), keras.layers.Dense(1)])
        self.net = network()
        self.slow = network()
        self.adam = keras.optimizers.Adam(0.01)
        if self.broken == "not built":
            return
        if self.broken == "listed":
            self.several = [network()]
        self.adam.build(self.net.trainable_variables)

    def train_step(self, state: Any, batch: Any, rng: Any) -> Any:
        x = batch["x"] + 0.1 * random.normal(batch["x"].shape, seed=rng)

        def mean_loss(trainable: Any) -> Any:
            outputs, _ = self.net.stateless_call(trainable, state["net"].non_trainable, x, training=True)
            loss = ops.square(outputs[:, 0] - batch["y"])
            return ops.sum(loss * batch["weight"]) / ops.sum(batch["weight"]), loss

        gradients, loss = jax.grad(mean_loss, has_aux=True)(state["net"].trainable)
        trainable, adam = self.adam.stateless_apply(state["adam"], gradients, state["net"].trainable)
        pairs = zip(state["slow"].trainable, trainable, strict=True)
        slow = [DECAY * old + (1 - DECAY) * new for old, new in pairs]
        state = {
            **state,
            "net": state["net"]._replace(trainable=trainable),
            "slow": state["slow"]._replace(trainable=slow),
            "adam": adam,
        }
        if self.broken == "loses the optimizer":
            del state["adam"]
        if self.broken == "shape":
            state["net"] = state["net"]._replace(trainable=[value[None] for value in trainable])
        if self.broken == "metrics":
            return state, {"loss": loss, "more": loss}
        return state, {"loss": loss}

    def evaluate(self, state: Any, batch: Any, rng: Any) -> Any:
        del rng
        outputs, _ = self.slow.stateless_call(*state["slow"], batch["x"], training=False)
        error = outputs[:, 0] - batch["y"]
        return {"loss": ops.square(error), "error": ops.abs(error)}
