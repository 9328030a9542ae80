"""Runs in a process of its own, because virtual devices can't change within one: trains and writes arrays.

Usage: python -m tests.engine.worker OUT.npz JSON, with JSON {"axes": {...} or null for plain tf_keras, "runs": [...]}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from runner.engine import make_engine, registry
from runner.engine.calls import first
from tests.configs import with_keys
from tests.engine import cases


def on_mesh(axes: dict[str, int], run: dict[str, Any], combine: bool) -> dict[str, np.ndarray]:
    """Trains one engine; returns losses, initial and final variables."""
    config = cases.config(axes, cases.OPTIMIZERS[run["optimizer"]], run["target"], **run["options"])
    config = with_keys(config, {"engine.combine_all_reduces": combine})
    engine = make_engine(config, cases.data(), cases.STEPS)
    engine.build()
    initial = {f"initial/{path}": value for path, value in engine.state().items()}
    batches = cases.batches()
    metrics = engine.train_steps(engine.place(batches), 0).read()
    evaluation = engine.evaluate([first(batches)])
    extra = {
        "loss": metrics.sums["loss"] / metrics.weight,
        "eval/loss": np.asarray(evaluation.loss),
        "eval/confusion": evaluation.totals["confusion"],
    }
    return {**initial, **engine.state(), **extra}


def plain(run: dict[str, Any]) -> dict[str, np.ndarray]:
    """Trains plain tf_keras with its own optimizer on one device."""
    import tensorflow as tf

    from runner.engine.dtensor.adapters.keras import KerasAdapter
    from runner.engine.dtensor.adapters.paths import named_variables
    from runner.optim.stock import stock_optimizer

    config = cases.config({"batch": 1}, cases.OPTIMIZERS[run["optimizer"]], run["target"], **run["options"])
    tf.keras.backend.experimental.enable_tf_random_generator()
    model = KerasAdapter(config.model, cases.data(), config.trainer.seed).plain()
    initial = {f"initial/{path}": variable.numpy() for path, variable in named_variables(model).items()}
    stock = stock_optimizer(config.optimizer, cases.STEPS, tf.keras)
    stock.build(model.trainable_variables)
    entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = entropy(y, model(x, training=True)) + tf.add_n([*model.losses, tf.constant(0.0)])
        gradients = tape.gradient(loss, model.trainable_variables)
        stock.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    batches = cases.batches()
    images, labels = batches.arrays["image"] / np.float32(255), batches.arrays["label"]
    losses = np.array([step(tf.constant(x), tf.constant(y)).numpy() for x, y in zip(images, labels, strict=True)])
    logits = model(images[0], training=False).numpy()
    eval_loss = entropy(labels[0], logits).numpy()
    confusion = np.zeros((cases.CLASSES, cases.CLASSES), np.int64)
    np.add.at(confusion, (labels[0], logits.argmax(-1)), 1)
    final = {path: variable.numpy() for path, variable in named_variables(model).items()}
    return {**initial, **final, "loss": losses, "eval/loss": eval_loss, "eval/confusion": confusion}


def main() -> None:
    """Runs every case of the request and writes `<case>:<name>` arrays."""
    request = json.loads(sys.argv[2])
    config = cases.config({"batch": 1})
    config = with_keys(config, {"engine.combine_all_reduces": request["combine"]})
    registry.load(config)
    arrays: dict[str, np.ndarray] = {}
    for run in request["runs"]:
        got = on_mesh(request["axes"], run, request["combine"]) if request["axes"] else plain(run)
        arrays |= {f"{run['name']}:{name}": value for name, value in got.items()}
    np.savez(sys.argv[1], **arrays)


if __name__ == "__main__":
    main()
