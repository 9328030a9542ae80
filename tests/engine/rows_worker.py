"""Evaluates losses that read other rows of their batch, in a process of its own, and prints what it found as JSON.

Usage: python -m tests.engine.rows_worker ENGINE AXES, with AXES as JSON. Every batch of the evaluations holds 12
examples, the last one 7, and the mesh pads them to its own size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runner.arrays import of as array_functions
from runner.config.schema import ModelConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.data.sampler import eval_plan
from runner.engine import make_engine, registry
from runner.engine.base import Engine, HostBatches
from runner.errors import ConfigError
from runner.model import padding
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases

SIZE, BATCH, WIDTH = 31, 12, 16
SPECS = {"x": ArraySpec((5,), "float32"), "label": ArraySpec((), "int32", names=("a", "b", "c"))}


def one(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model of one output."""
    x = keras.Input(inputs["x"].shape)
    return keras.Model(x, keras.layers.Dense(4, name="d1")(keras.layers.Dense(6, "tanh", name="d0")(x)))


def two(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model of two outputs, a tuple."""
    x = keras.Input(inputs["x"].shape)
    hidden = keras.layers.Dense(6, "tanh", name="d0")(x)
    return keras.Model(x, (keras.layers.Dense(4, name="d1")(hidden), keras.layers.Dense(3, name="d2")(hidden)))


def table(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Returns a model that also gives a weight, whose first dim is as long as a padded batch of 8 devices."""
    del inputs

    class Table(keras.Model):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.prototypes = self.add_weight(shape=(WIDTH, shape[-1]), name="prototypes")
            self.built = True

        def call(self, x: Any) -> Any:
            return {"rows": x * 1.0, "prototypes": self.prototypes * 1.0}

    return Table(name="table")


def contrast(ops: Any, outputs: Any, batch: Any) -> Any:
    """Supervised contrastive loss over all rows that it is given."""
    unit = outputs / ops.sqrt(ops.sum(ops.square(outputs), axis=-1, keepdims=True) + 1e-6)
    near = ops.matmul(unit, ops.transpose(unit))
    label = ops.one_hot(batch["label"], 3)
    same = ops.matmul(label, ops.transpose(label))
    log = near - ops.expand_dims(ops.logsumexp(near), -1)
    return -ops.sum(same * log, axis=-1) / ops.sum(same, axis=-1)


def pair(ops: Any, outputs: Any, batch: Any) -> Any:
    """Contrastive loss of the first of two outputs, and the size of the second."""
    first, second = outputs
    return contrast(ops, first, batch) + ops.mean(ops.square(second), axis=-1)


def above(ops: Any, outputs: Any, batch: Any) -> Any:
    """Share of the rows whose first output is smaller, a metric that reads other rows."""
    del batch
    outputs = outputs[0] if isinstance(outputs, list | tuple) else outputs
    first = ops.sum(outputs, axis=-1)
    return ops.mean(ops.cast(ops.greater(ops.expand_dims(first, -1), ops.expand_dims(first, 0)), "float32"), axis=-1)


def alone(ops: Any, outputs: Any, batch: Any) -> Any:
    """Loss of each row by itself."""
    return ops.sparse_cross_entropy(batch["label"], outputs)


def masked(ops: Any, outputs: Any, batch: Any) -> Any:
    """Distance from the mean of the rows that are no padding."""
    weight = ops.expand_dims(batch["weight"], -1)
    mean = ops.sum(outputs * weight, axis=0, keepdims=True) / ops.sum(weight)
    return ops.sum(ops.square(outputs - mean), axis=-1)


def by_prototypes(ops: Any, outputs: Any, batch: Any) -> Any:
    """Reads a table that the model gives: all of it belongs to every example."""
    del batch
    return ops.sum(ops.square(ops.matmul(outputs["rows"], ops.transpose(outputs["prototypes"]))), axis=-1)


def config(engine: str, axes: dict[str, int], model: str, loss: str) -> RunConfig:
    """Returns the config of a run."""
    made = cases.config(axes)
    options = {"target": f"{__spec__.name}.{loss}", "units": 4}
    if loss in ("contrast", "pair"):
        options["maximize"] = ["above"]
    return with_keys(
        made,
        {
            "task": TaskConfig("custom", ["label"], options=options),
            "model": ModelConfig(f"{__spec__.name}.{model}", {}),
            "engine.name": engine,
            "engine.compilation_cache": False,
            "dataset.batch_size": BATCH * axes["batch"],
        },
    )


def arrays() -> dict[str, Array]:
    """Returns the split."""
    rng = np.random.default_rng(3)
    return {"x": rng.normal(size=(SIZE, 5)).astype(np.float32), "label": rng.integers(0, 3, SIZE).astype(np.int32)}


def batches(rows: int) -> Iterator[HostBatches]:
    """Yields an evaluation's batches, as long as the mesh wants them."""
    plan = eval_plan(SIZE, BATCH, rows=rows)
    for indices, weight in zip(plan.indices, plan.weights, strict=True):
        held = {name: array[indices][None] for name, array in arrays().items()} | {WEIGHT: weight[None]}
        yield HostBatches(held, weight[None], 1)


def engine_of(made: RunConfig) -> Engine:
    """Returns a built engine."""
    engine = make_engine(made, DataSpec(SPECS, make_task(made.task, SPECS)), 8)
    engine.build()
    return engine


def expected(loss: str, outputs: Sequence[Array]) -> dict[str, float]:
    """Returns what NumPy computes of the model's outputs, batch by batch and without any padding."""
    ops, labels = array_functions(np), arrays()["label"]
    sums = {"loss": 0.0, "above": 0.0}
    for start in range(0, SIZE, BATCH):
        rows = slice(start, start + BATCH)
        given = [output[rows] for output in outputs]
        seen = given if loss == "pair" else given[0]
        sums["loss"] += float(globals()[loss](ops, seen, {"label": labels[rows]}).sum())
        sums["above"] += float(above(ops, seen, {}).sum())
    return {name: value / SIZE for name, value in sums.items()}


def main() -> None:
    """Evaluates, and prints what it found."""
    name, axes = sys.argv[1], json.loads(sys.argv[2])
    rows = -(-BATCH // axes["batch"]) * axes["batch"]
    registry.load(config(name, axes, "one", "contrast"))
    found: dict[str, Any] = {}
    for model, loss in (("one", "contrast"), ("two", "pair")):
        evaluated = engine_of(config(name, axes, model, loss)).evaluate(batches(rows), keep_outputs=True)
        outputs = list(evaluated.named_outputs.values()) or [evaluated.outputs]
        found[model] = {
            "metrics": dict(evaluated.metrics),
            "expected": expected(loss, outputs),
            "examples": evaluated.examples,
            "outputs": {key: list(value.shape) for key, value in evaluated.named_outputs.items()},
        }
    *_, last = batches(rows)
    for loss in ("contrast", "alone", "masked"):
        try:
            padding.check_functions(*engine_of(config(name, axes, "one", loss)).with_and_without_others(last, 7))
            found[loss] = "passes"
        except ConfigError as error:
            found[loss] = str(error)
    if name == "jax":
        engine = engine_of(config(name, axes, "table", "by_prototypes"))
        (path,) = engine.trainable
        table_wd = engine.state()[path]
        plain = np.square(arrays()["x"] @ table_wd.T).sum(axis=1).mean()
        found["table"] = [engine.evaluate(batches(rows)).loss, float(plain)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
