"""Evaluates models as a run and as Keras do, in a process of its own, and prints both as JSON.

Usage: python -m tests.engine.val_loss_worker ENGINE AXES, with AXES as JSON. The split has 42 examples, the batches of
Keras have 32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner import arrays
from runner.config.schema import ModelConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data import workers
from runner.data.base import ArraySource, ArraySpec
from runner.engine import make_engine, registry
from runner.errors import ConfigError
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.training import feed, padded
from tests.configs import with_keys
from tests.engine import cases

SIZE, BATCH, CLASSES = 42, 32, 3
SPECS = {
    "x": ArraySpec((5,), "float32"),
    "label": ArraySpec((), "int32", names=("a", "b", "c")),
    "amount": ArraySpec((), "float32"),
}
# Model, and weights of the classes.
CASES = {
    "penalties": ("penalties", None),
    "activity": ("activity", None),
    "added": ("added", None),
    "mixed": ("mixed", None),
    "class_weights": ("plain", [1.0, 2.0, 5.0]),
}


def model(keras: Any, inputs: Mapping[str, ArraySpec], *layers: Any, **options: Any) -> Any:
    """Returns two dense layers, with other layers between them."""
    x = keras.Input(inputs["x"].shape)
    hidden = keras.layers.Dense(8, "tanh", name="d0", **options)(x)
    for layer in layers:
        hidden = layer(hidden)
    return keras.Model(x, keras.layers.Dense(CLASSES, name="d1")(hidden))


def plain(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model that adds nothing."""
    return model(keras, inputs)


def penalties(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model with penalties of its weights."""
    return model(keras, inputs, kernel_regularizer=keras.regularizers.L2(0.1), bias_regularizer="l1")


def activity(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model with a penalty of its activations, of which Keras 3 takes the sum over a batch."""
    return model(keras, inputs, activity_regularizer=keras.regularizers.L2(0.1))


def added(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model whose layer adds a mean over a batch."""
    ops = arrays.of(sys.modules["tensorflow" if keras.__name__ == "tf_keras" else "jax.numpy"])

    class Added(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            self.add_loss(0.3 * ops.mean(ops.square(x), axis=(0, 1)))
            return x

    return model(keras, inputs, Added(name="added"))


def mixed(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model in which an example's output depends on its batch."""
    return model(keras, inputs, keras.layers.Softmax(axis=0, name="mixed"))


def broadcast(ops: Any, outputs: Any, batch: Any) -> Any:
    """Squares (B, 1) minus (B,): each example's output minus all targets."""
    error = ops.sum(outputs, axis=-1, keepdims=True) - batch["amount"]
    return ops.mean(ops.square(error), axis=-1)


def by_example(ops: Any, outputs: Any, batch: Any) -> Any:
    """Squares each example's own error."""
    return ops.square(ops.sum(outputs, axis=-1) - batch["amount"])


def split() -> ArraySource:
    """Returns the examples."""
    rng = np.random.default_rng(3)
    values = {
        "x": rng.normal(size=(SIZE, 5)).astype(np.float32),
        "label": rng.integers(0, CLASSES, SIZE).astype(np.int32),
        "amount": rng.normal(size=SIZE).astype(np.float32),
    }
    return ArraySource(values, SPECS)


def config(engine: str, axes: dict[str, int], builder: str, task: TaskConfig, accumulate: int = 1) -> RunConfig:
    """Returns the config of a run."""
    return with_keys(
        cases.config(axes),
        {
            "task": task,
            "model": ModelConfig(f"{__spec__.name}.{builder}", {}),
            "engine.name": engine,
            "engine.compilation_cache": False,
            "dataset.batch_size": BATCH,
            "dataset.remainder": "drop",
            "trainer.accumulate_steps": accumulate,
        },
    )


def main() -> None:
    """Evaluates, and prints what it found."""
    name, axes = sys.argv[1], json.loads(sys.argv[2])
    source = split()
    registry.load(config(name, axes, "plain", TaskConfig("classification", ["label"], ["x"])))
    found: dict[str, Any] = {}
    for case, (builder, weights) in CASES.items():
        task_config = TaskConfig("classification", ["label"], ["x"], options={"class_weights": weights})
        made = config(name, axes, builder, task_config)
        task = make_task(made.task, SPECS)
        engine = make_engine(made, DataSpec(task.arrays, task), 8)
        engine.build()
        with workers.opened(made.dataset, 0) as readers:
            examples = feed.Examples(source, task, readers.reader(source))
            evaluation = engine.evaluate(feed.evaluation_of(made, engine, examples), keep_outputs=True)
        stock = engine.plain_model()
        losses = sys.modules["keras" if name == "jax" else "tf_keras"].losses
        stock.compile(loss=losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        rows = source.read(np.arange(SIZE))
        expected = stock.evaluate(rows["x"], rows["label"], batch_size=BATCH, verbose=0, return_dict=True)
        found[case] = {"run": dict(evaluation.metrics), "keras": {key: float(expected[key]) for key in expected}}
    for loss, accumulate in (("broadcast", 1), ("by_example", 1), ("broadcast", 2), ("by_example", 2)):
        task_config = TaskConfig(
            "custom", ["amount"], ["x"], options={"target": f"{__spec__.name}.{loss}", "units": 3}
        )
        made = config(name, axes, "plain", task_config, accumulate)
        task = make_task(made.task, SPECS)
        engine = make_engine(made, DataSpec(task.arrays, task), 8)
        engine.build()
        with workers.opened(made.dataset, 0) as readers:
            examples = feed.Examples(source, task, readers.reader(source))
            try:
                said = padded.check(made, engine, examples)
            except ConfigError as error:
                said = [f"error: {error}"]
        found[f"{loss} {accumulate}"] = said
    print(json.dumps(found))


if __name__ == "__main__":
    main()
