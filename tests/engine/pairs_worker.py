"""Trains embeddings by the pairs of a batch on a mesh, or by `compile(loss=...)` of the engine's own Keras.

Usage: python -m tests.engine.pairs_worker OUT.npz JSON, with JSON {"engine": `jax` or `keras_dtensor`, "axes": {...}
or null for plain Keras on one device, "layout": of `tasks_worker.LAYOUTS`, "loss": one of `OPTIONS`}.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runner.config.build import build as build_config
from runner.config.options import arranged
from runner.config.schema import LayoutConfig, ModelConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.optim.stock import stock_optimizer
from runner.task.base import DataSpec, OutputSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases, stock_models
from tests.engine.tasks_worker import LAYOUTS

STEPS, BATCH, PADDED, SIZE = 8, 32, 5, 6
TEMPERATURE = 0.5
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "in_batch_softmax": {"symmetric": True, "temperature": TEMPERATURE, "inputs": ["columns", "others"]},
    "n_pairs": {"temperature": TEMPERATURE, "inputs": ["columns", "others"]},
}
SPECS = {
    "columns": ArraySpec((7,), "float32"),
    "others": ArraySpec((3,), "float32"),
    "label": ArraySpec((), "int32"),
}


def build(keras: Any, inputs: Mapping[str, ArraySpec], outputs: OutputSpec) -> Any:
    """Builds one embedding of both inputs, or with 1 unit in the config one embedding of each."""
    tensors = {name: keras.Input(spec.shape, name=name) for name, spec in inputs.items()}
    x = keras.layers.Concatenate(name="joined")(list(tensors.values()))
    hidden = keras.layers.Dense(16, "tanh", name="d1")(x)
    query = keras.layers.Dense(SIZE, name="d2")(hidden)
    if outputs.units is not None:
        return keras.Model(tensors, query)
    candidate = keras.layers.Dense(SIZE, name="d3")(keras.layers.Dense(16, "tanh", name="other")(tensors["others"]))
    return keras.Model(tensors, [query, candidate])


def task_config(request: Mapping[str, Any]) -> TaskConfig:
    """Returns the config of the task."""
    loss = request["loss"]
    units = {} if loss == "in_batch_softmax" else {"units": SIZE}
    return build_config(
        TaskConfig, arranged("task", {"name": "pairs", "loss": loss, **units, **OPTIONS[loss]}), "task"
    )


def spec(request: Mapping[str, Any]) -> DataSpec:
    """Returns what an engine is built for."""
    task = make_task(task_config(request), SPECS)
    return DataSpec(task.arrays, task)


def config(request: Mapping[str, Any]) -> RunConfig:
    """Returns the config of a run."""
    made = cases.config(request["axes"] or {"batch": 1}, cases.OPTIMIZERS["sgd"])
    return with_keys(
        made,
        {
            "task": task_config(request),
            "layout": LayoutConfig(rules=LAYOUTS[request["layout"]]),
            "model": ModelConfig(f"{__spec__.name}.build", {}),
            "engine.name": request["engine"],
            "engine.compilation_cache": False,
            "dataset.batch_size": BATCH,
        },
    )


def batches(request: Mapping[str, Any]) -> HostBatches:
    """Returns drawn batches; the last step's end is padding, which has the labels of other rows."""
    rng = np.random.default_rng(5)
    shape = (STEPS, BATCH)
    weight = np.ones(shape, np.float32)
    weight[-1, -PADDED:] = 0
    arrays = {
        "columns": rng.normal(size=(*shape, 7)).astype(np.float32),
        "others": rng.normal(size=(*shape, 3)).astype(np.float32),
        "label": rng.integers(0, 6, shape).astype(np.int32),
        WEIGHT: weight,
    }
    if request["loss"] == "in_batch_softmax":
        del arrays["label"]
    return HostBatches(arrays, weight, STEPS)


def on_mesh(request: Mapping[str, Any]) -> dict[str, Array]:
    """Trains an engine; returns the loss of each step, of an evaluation, and the final variables."""
    engine = make_engine(config(request), spec(request), STEPS)
    engine.build()
    drawn = batches(request)
    read = engine.train_steps(engine.place(drawn), 0).read()
    results = {"step/loss": read.sums["loss"] / read.weight}
    last = HostBatches({name: array[-1:] for name, array in drawn.arrays.items()}, drawn.weights[-1:], 1)
    results["eval/loss"] = np.asarray(engine.evaluate([last]).loss)
    return results | {path: engine.state()[path] for path in engine.placements}


def _functions(engine: str) -> Any:
    """Returns the functions of the tensors of an engine's Keras, by NumPy's names."""
    if engine == "jax":
        return importlib.import_module("keras.ops")
    return importlib.import_module("tensorflow.experimental.numpy")


def stock_loss(request: Mapping[str, Any], keras: Any) -> Callable[[Any, Any], Any]:
    """Returns a loss as users of Keras write it: (labels, outputs side by side) -> (B,) or a scalar."""
    ops = _functions(request["engine"])

    def unit(x: Any) -> Any:
        return x / ops.sqrt(ops.sum(x * x, axis=-1, keepdims=True))

    def cross_entropy(probabilities: Any, logits: Any) -> Any:
        return keras.losses.categorical_crossentropy(probabilities, logits, from_logits=True)

    def symmetric_softmax(own: Any, outputs: Any) -> Any:
        logits = ops.matmul(unit(outputs[:, :SIZE]), ops.transpose(unit(outputs[:, SIZE:]))) / TEMPERATURE
        return (cross_entropy(own, logits) + cross_entropy(own, ops.transpose(logits))) / 2

    def n_pairs(label: Any, outputs: Any) -> Any:
        logits = ops.matmul(unit(outputs), ops.transpose(unit(outputs))) / TEMPERATURE
        same = ops.equal(label, ops.transpose(label))
        same = ops.where(same, ops.ones_like(logits), ops.zeros_like(logits))
        return cross_entropy(same / ops.sum(same, axis=1, keepdims=True), logits)

    return {"in_batch_softmax": symmetric_softmax, "n_pairs": n_pairs}[request["loss"]]


def stock(request: Mapping[str, Any]) -> dict[str, Array]:
    """Trains the engine's own Keras by `compile` and `train_on_batch` on one device, without padding."""
    made = config(request)
    keras, model, variables = stock_models.build(made, spec(request))
    outputs = model.outputs
    joined = outputs[0]
    if len(outputs) > 1:
        joined = keras.layers.Concatenate(name="side_by_side")(outputs)
    whole = keras.Model(model.input, joined)
    whole.compile(optimizer=stock_optimizer(made.optimizer, STEPS, keras), loss=stock_loss(request, keras))
    drawn = batches(request)
    losses = []
    for step in range(STEPS):
        real = drawn.arrays[WEIGHT][step] > 0
        rows = {name: array[step][real] for name, array in drawn.arrays.items()}
        x = {name: rows[name] for name in ("columns", "others")}
        # The one-hot labels of a softmax over the batch, or class numbers.
        y = rows["label"][:, None] if "label" in rows else np.eye(len(rows["columns"]), dtype=np.float32)
        whole.reset_metrics()
        losses.append(float(whole.train_on_batch(x, y)))
    whole.reset_metrics()
    results = {"step/loss": np.asarray(losses), "eval/loss": np.asarray(float(whole.test_on_batch(x, y)))}
    return results | {path: np.array(variable) for path, variable in variables.items()}


def main() -> None:
    """Writes the arrays of one request."""
    request = json.loads(sys.argv[2])
    registry.load(config(request))
    np.savez(sys.argv[1], **(on_mesh(request) if request["axes"] else stock(request)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
