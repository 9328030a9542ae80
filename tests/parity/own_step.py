"""A custom step as the runner takes it, beside the `train_step` of `rows_training.custom_step`; and a callback."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import keras
import optax
from keras import ops

EVENTS = ("train_begin", "epoch_begin", "train_batch_begin", "train_batch_end", "epoch_end", "train_end")


def seen(path: str) -> Any:
    """Returns a callback that writes each event, the number of its epoch or batch, and its logs."""
    events: list[list[Any]] = []

    def see(event: str, *arguments: Any, **named: Any) -> None:
        events.append([event, *arguments, *named.values()])
        Path(path).write_text(json.dumps(events))

    return keras.callbacks.LambdaCallback(**{f"on_{event}": partial(see, event) for event in EVENTS})


def halved(steps_per_epoch: int) -> optax.GradientTransformation:
    """SGD whose rate is halved after each epoch."""
    return optax.sgd(lambda step: 0.5 ** (step // steps_per_epoch))


class Step:
    """Trains the config's model on a power of its errors, and evaluates their squares."""

    def build(self, model: Any, optimizer: Any) -> None:
        self.net = model
        self.optimizer_of_net = optimizer
        self.optimizer_of_net.build(model.trainable_variables)

    def train_step(self, state: Any, batch: Any, rng: Any) -> Any:
        del rng

        def mean_loss(trainable: Any, others: Any) -> Any:
            outputs, others = self.net.stateless_call(trainable, others, batch["x"], training=True)
            return ops.mean(ops.abs(batch["label"] - outputs) ** 1.5), others

        (loss, others), gradients = jax.value_and_grad(mean_loss, has_aux=True)(*state["net"])
        trainable, variables = self.optimizer_of_net.stateless_apply(
            state["optimizer_of_net"], gradients, state["net"].trainable
        )
        net = state["net"]._replace(trainable=trainable, non_trainable=others)
        return {**state, "net": net, "optimizer_of_net": variables}, {"loss": loss}

    def evaluate(self, state: Any, batch: Any, rng: Any) -> Any:
        del rng
        outputs, _ = self.net.stateless_call(*state["net"], batch["x"], training=False)
        return {"loss": ops.mean(ops.square(batch["label"] - outputs), axis=-1)}
