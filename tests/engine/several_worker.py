"""Trains a model of three outputs and two inputs on a mesh, or by `compile(loss={...})` of the engine's own Keras.

Usage: python -m tests.engine.several_worker OUT.npz JSON, with JSON {"engine": `jax` or `keras_dtensor`, "axes": {...}
or null for plain Keras on one device, "layout": of `tasks_worker.LAYOUTS`, "accumulate": micro-batches of a step}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
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

STEPS, BATCH, PADDED = 8, 32, 5
CLASSES, PLACES = 3, 4
IGNORED = -1
LOSS_WEIGHTS = {"age": 0.25, "sick": 3.0, "tags": 0.5}
SPECS = {
    "columns": ArraySpec((7,), "float32"),
    "others": ArraySpec((3,), "float32"),
    "years": ArraySpec((), "float32"),
    "sick": ArraySpec((), "int32"),
    "tags": ArraySpec((PLACES,), "int32"),
    "importance": ArraySpec((), "float32"),
}


def build(keras: Any, inputs: Mapping[str, ArraySpec], outputs: OutputSpec) -> Any:
    """Builds tanh(d1) over both inputs side by side, and a list of outputs in another order than the config's."""
    tensors = {name: keras.Input(spec.shape, name=name) for name, spec in inputs.items()}
    x = keras.layers.Concatenate(name="joined")(list(tensors.values()))
    x = keras.layers.Dense(16, "tanh", name="d1")(x)
    units = {name: spec.units for name, spec in outputs.by_name.items()}
    tags = keras.layers.Dense(PLACES * units["tags"], name="d2")(x)
    tags = keras.layers.Reshape((PLACES, units["tags"]), name="tags")(tags)
    sick = keras.layers.Dense(units["sick"], name="sick")(x)
    return keras.Model(tensors, [tags, sick, keras.layers.Dense(units["age"], name="age")(x)])


def task_config(request: Mapping[str, Any]) -> TaskConfig:
    """Returns the config of the task; with micro-batches, all labels count."""
    outputs: dict[str, Any] = {
        "age": {"name": "regression", "target": "years", "example_weight": "importance"},
        "sick": {"name": "binary"},
        "tags": {"name": "positions", "classes": CLASSES},
    }
    if request["accumulate"] == 1:
        outputs["tags"]["ignore_index"] = IGNORED
    for name, output in outputs.items():
        output["weight"] = LOSS_WEIGHTS[name]
    return build_config(TaskConfig, arranged("task", {"name": "several", "outputs": outputs}), "task")


def spec(request: Mapping[str, Any]) -> DataSpec:
    """Returns what an engine is built for."""
    return DataSpec(SPECS, make_task(task_config(request), SPECS))


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
            "trainer.accumulate_steps": request["accumulate"],
        },
    )


def batches(request: Mapping[str, Any]) -> HostBatches:
    """Returns drawn batches; the last step's end is padding, and steps differ in the number of labels that count."""
    rng = np.random.default_rng(5)
    shape = (STEPS, BATCH)
    tags = rng.integers(0, CLASSES, (*shape, PLACES)).astype(np.int32)
    if request["accumulate"] == 1:
        ignored = rng.random((*shape, PLACES)) < np.linspace(0.1, 0.7, STEPS)[:, None, None]
        tags[ignored] = IGNORED
    weight = np.ones(shape, np.float32)
    weight[-1, -PADDED:] = 0
    arrays = {
        "columns": rng.normal(size=(*shape, 7)).astype(np.float32),
        "others": rng.normal(size=(*shape, 3)).astype(np.float32),
        "years": rng.normal(size=shape).astype(np.float32),
        "sick": rng.integers(0, 2, shape).astype(np.int32),
        "tags": tags,
        "importance": rng.uniform(0.5, 2.0, shape).astype(np.float32),
        WEIGHT: weight,
    }
    return HostBatches(arrays, weight, STEPS)


def on_mesh(request: Mapping[str, Any]) -> dict[str, Array]:
    """Trains an engine; returns losses and metrics of each step, an evaluation, and the final variables."""
    engine = make_engine(config(request), spec(request), STEPS)
    engine.build()
    drawn = batches(request)
    read = engine.train_steps(engine.place(drawn), 0).read()
    results = {f"step/{name}": sums / read.weight for name, sums in read.sums.items()}
    last = HostBatches({name: array[-1:] for name, array in drawn.arrays.items()}, drawn.weights[-1:], 1)
    evaluation = engine.evaluate([last], keep_outputs=True)
    results |= {f"eval/{name}": np.asarray(value) for name, value in evaluation.metrics.items()}
    results |= {f"outputs/{name}": output for name, output in evaluation.named_outputs.items()}
    return results | {path: engine.state()[path] for path in engine.placements}


def stock(request: Mapping[str, Any]) -> dict[str, Array]:
    """Trains the engine's own Keras by `compile` and `train_on_batch` on one device."""
    made = config(request)
    keras, model, variables = stock_models.build(made, spec(request))
    ignored = IGNORED if request["accumulate"] == 1 else None
    model.compile(
        optimizer=stock_optimizer(made.optimizer, STEPS, keras),
        loss={
            "age": keras.losses.MeanSquaredError(),
            "sick": keras.losses.BinaryCrossentropy(from_logits=True),
            "tags": keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored),
        },
        loss_weights=LOSS_WEIGHTS,
        metrics={
            "age": [keras.metrics.MeanAbsoluteError(name="mae")],
            "sick": [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)],
        },
    )
    drawn = batches(request)
    results: dict[str, Any] = {}
    for step in range(STEPS):
        real = drawn.arrays[WEIGHT][step] > 0
        rows = {name: array[step][real] for name, array in drawn.arrays.items()}
        x = {name: rows[name] for name in ("columns", "others")}
        y = {"age": rows["years"][:, None], "sick": rows["sick"][:, None].astype(np.float32), "tags": rows["tags"]}
        ones = np.ones(len(rows["years"]), np.float32)
        sample_weight = {"age": rows["importance"], "sick": ones, "tags": ones[:, None]}
        model.reset_metrics()
        logs = model.train_on_batch(x, y, sample_weight=sample_weight, return_dict=True)
        for name, value in logs.items():
            results.setdefault(f"step/{name}", []).append(float(value))
    model.reset_metrics()
    logs = model.test_on_batch(x, y, sample_weight=sample_weight, return_dict=True)
    results |= {f"eval/{name}": np.asarray(float(value)) for name, value in logs.items()}
    outputs = model(x, training=False)
    results |= {f"outputs/{name}": np.asarray(output) for name, output in outputs.items()}
    return results | {path: np.array(variable) for path, variable in variables.items()}


def main() -> None:
    """Writes the arrays of one request."""
    request = json.loads(sys.argv[2])
    registry.load(config(request))
    np.savez(sys.argv[1], **(on_mesh(request) if request["axes"] else stock(request)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
