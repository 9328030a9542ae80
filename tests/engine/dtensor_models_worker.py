"""Trains the models of `dtensor_models` on a DTensor mesh, or as stock tf_keras on one device; writes what it found.

Usage: python -m tests.engine.dtensor_models_worker OUT.npz JSON, with JSON {"names": [...], "axes": {...} or null for
one device}. Only the masks of random layers are handed in to the stock side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tf_keras

from runner.config.schema import LayoutConfig, ModelConfig, RuleConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.engine.dtensor.adapters.keras import KerasAdapter
from runner.engine.dtensor.adapters.paths import named_variables
from runner.engine.dtensor.masks import masks_from_scope
from runner.model import scope
from runner.optim.stock import stock_optimizer
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases
from tests.engine.dtensor_models import SHAPES, SPLIT

STEPS, BATCH, CLASSES = 3, 16, 4


def spec(name: str) -> DataSpec:
    """Returns what an engine is built for."""
    labels = tuple("abcdefgh"[:CLASSES])
    arrays = {"x": ArraySpec(SHAPES[name], "float32"), "label": ArraySpec((), "int32", names=labels)}
    return DataSpec(arrays, make_task(TaskConfig("classification", ["label"]), arrays))


def config(name: str, axes: Mapping[str, int]) -> RunConfig:
    """Returns the config of a run; with an axis `model`, some kernels are split over it."""
    made = cases.config(dict(axes))
    made = with_keys(made, {"task": TaskConfig("classification", ["label"])})
    split = SPLIT.get(name, {"head/kernel": [None, "model"]})
    rules = [RuleConfig(pattern, list(spec)) for pattern, spec in split.items()] if "model" in axes else []
    return with_keys(
        made,
        {
            "layout": LayoutConfig(rules=rules),
            "model": ModelConfig(f"tests.engine.dtensor_models.{name}", {}),
            "engine.name": "keras_dtensor",
            "dataset.batch_size": BATCH,
        },
    )


def batches(name: str) -> HostBatches:
    """Returns drawn batches."""
    rng, data = np.random.default_rng(5), spec(name)
    shape = (STEPS, BATCH, *SHAPES[name])
    x = rng.normal(size=shape)
    weight = np.ones((STEPS, BATCH), np.float32)
    label = rng.integers(0, CLASSES, (STEPS, BATCH)).astype(np.int32)
    arrays = {"x": x.astype(data.arrays["x"].dtype), "label": label, WEIGHT: weight}
    return HostBatches(arrays, weight, STEPS)


def on_mesh(name: str, axes: Mapping[str, int]) -> dict[str, Array]:
    """Trains an engine; returns gradients, losses, outputs of an evaluation and the final variables."""
    engine = make_engine(config(name, axes), spec(name), STEPS)
    engine.build()
    given = batches(name)
    found = {f"gradient/{path}": value for path, value in engine.gradients(given, 0).items()}
    read = engine.train_steps(engine.place(given), 0).read()
    last = HostBatches({k: v[-1:] for k, v in given.arrays.items()}, given.weights[-1:], 1)
    found |= {"loss": read.sums["loss"] / read.weight}
    found |= {"outputs": engine.evaluate([last], keep_outputs=True).outputs}
    return found | {path: engine.state()[path] for path in engine.placements}


def stock(name: str) -> dict[str, Array]:
    """Trains stock tf_keras with its own loss and optimizer on one device."""
    made = config(name, {"batch": 1})
    tf_keras.backend.experimental.enable_tf_random_generator()
    model = KerasAdapter(made.model, spec(name), made.trainer.seed).plain()
    loss_of = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = stock_optimizer(made.optimizer, STEPS, tf_keras)
    optimizer.build(model.trainable_variables)
    given, found, seen = batches(name), dict[str, Array](), []
    paths = {id(variable): path for path, variable in named_variables(model).items()}

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: tf.Tensor, label: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape, scope.enter(scope.Scope(made.trainer.seed, number)), masks_from_scope(model):
            loss = loss_of(label, model(x, training=True)) + tf.add_n([*model.losses, tf.constant(0.0)])
        found = tape.gradient(loss, model.trainable_variables)
        return loss, [tf.convert_to_tensor(gradient) for gradient in found]

    for number in range(STEPS):
        x, label = (tf.constant(given.arrays[key][number]) for key in ("x", "label"))
        loss, gradients = step(x, label, tf.constant(number))
        if not number:
            names = [paths[id(variable)] for variable in model.trainable_variables]
            found = {f"gradient/{path}": value.numpy() for path, value in zip(names, gradients, strict=True)}
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.append(float(loss))
    found |= {"loss": np.array(seen), "outputs": model(given.arrays["x"][-1], training=False).numpy()}
    return found | {path: variable.numpy() for path, variable in named_variables(model).items()}


def main() -> None:
    """Writes `<model>:<name>` arrays, or `<model>:error` where one is rejected or fails."""
    request = json.loads(sys.argv[2])
    arrays: dict[str, Array] = {}
    registry.load(config(request["names"][0], request["axes"] or {"batch": 1}))
    for name in request["names"]:
        try:
            got = on_mesh(name, request["axes"]) if request["axes"] else stock(name)
        except Exception as error:
            got = {"error": np.array(f"{type(error).__name__}: {error}")}
        arrays |= {f"{name}:{key}": value for key, value in got.items()}
    np.savez(sys.argv[1], **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
