"""Trains other tasks than one label an image, in a process of its own, and writes what it found.

Usage: python -m tests.engine.tasks_worker OUT.npz ENGINE AXES LAYOUT, with ENGINE `jax`, `keras_dtensor` or `plain`
(Keras 3's own training on one device), AXES as JSON, and LAYOUT one of `LAYOUTS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.config.schema import LayoutConfig, ModelConfig, RuleConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import ROW, WEIGHT, Array, ArraySource, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import Engine, HostBatches, cache_on_device, caches_split
from runner.task.base import DataSpec, OutputSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases

STEPS, BATCH, PADDED = 12, 32, 5
NAMES = ("two_inputs", "regression", "multilabel")
LAYOUTS: Mapping[str, list[RuleConfig]] = {
    "replicated": [],
    "megatron": [RuleConfig("d1/kernel", [None, "model"]), RuleConfig("d1/bias", ["model"])],
    "rows": [],  # of the picture, over the axis `model`
}
_SPECS: dict[str, dict[str, ArraySpec]] = {
    "two_inputs": {
        "picture": ArraySpec((6, 6, 3), "uint8", ("height", "width", "channel")),
        "vector": ArraySpec((4,), "float32"),
        "label": ArraySpec((), "int32", names=("a", "b", "c")),
    },
    "regression": {"columns": ArraySpec((7,), "float32"), "price": ArraySpec((), "float32")},
    "multilabel": {"columns": ArraySpec((5, 2), "float32"), "tags": ArraySpec((4,), "int32", names=tuple("abcd"))},
}
_TASKS: dict[str, dict[str, Any]] = {
    "two_inputs": {"name": "classification", "target": ["label"]},
    "regression": {"name": "regression", "target": ["price"]},
    "multilabel": {"name": "multilabel", "target": ["tags"]},
}


def build(keras: Any, inputs: Mapping[str, ArraySpec], outputs: OutputSpec) -> Any:
    """Builds tanh(d1) over all inputs side by side, and the outputs."""
    given = {name: keras.Input(spec.shape, dtype=spec.dtype, name=name) for name, spec in inputs.items()}
    flat = [keras.layers.Flatten(name=f"flat_{name}")(x) for name, x in given.items()]
    x = keras.layers.Concatenate(name="joined")(flat) if len(flat) > 1 else flat[0]
    x = keras.layers.Dense(16, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3), name="d1")(x)
    x = keras.layers.Dense(outputs.units, name="d2")(x)
    return keras.Model(given if len(given) > 1 else next(iter(given.values())), x)


def spec(name: str) -> DataSpec:
    """Returns what an engine is built for."""
    return DataSpec(_SPECS[name], make_task(TaskConfig(**_TASKS[name]), _SPECS[name]))


def config(name: str, engine: str, axes: dict[str, int], layout: str) -> RunConfig:
    """Returns the config of a run."""
    made = cases.config(axes)
    made = with_keys(made, {"task": TaskConfig(**_TASKS[name]), "layout": LayoutConfig(rules=LAYOUTS[layout])})
    if layout == "rows" and "picture" in _SPECS[name]:
        made = with_keys(made, {"layout.inputs": {"picture": ["batch", "model", None, None]}})
    return with_keys(
        made,
        {
            "model": ModelConfig(f"{__spec__.name}.build", {}),
            "engine.name": "jax" if engine == "plain" else engine,
            "engine.compilation_cache": False,
            "dataset.batch_size": BATCH,
        },
    )


def batches(name: str) -> HostBatches:
    """Returns drawn batches; the last step's end is padding, whose arrays are those of a real example."""
    rng = np.random.default_rng(5)
    arrays: dict[str, Array] = {}
    for key, each in _SPECS[name].items():
        shape = (STEPS, BATCH, *each.shape)
        if each.dtype == "float32":
            arrays[key] = rng.normal(size=shape).astype(np.float32)
        else:
            most = 256 if each.dtype == "uint8" else 2 if each.shape else len(each.names)
            arrays[key] = rng.integers(0, most, shape).astype(each.dtype)
    weight = np.ones((STEPS, BATCH), np.float32)
    weight[-1, -PADDED:] = 0
    return HostBatches(arrays | {WEIGHT: weight}, weight, STEPS)


def on_mesh(name: str, engine_name: str, axes: dict[str, int], layout: str) -> dict[str, Array]:
    """Trains an engine; returns losses, metrics, an evaluation, gradients and the final state."""
    engine = make_engine(config(name, engine_name, axes, layout), spec(name), STEPS)
    engine.build()
    given = batches(name)
    taken = on_devices(engine, given, spec(name))
    gradients = {f"gradient/{path}": value for path, value in engine.gradients(taken, 0).items()}
    read = engine.train_steps(engine.place(taken), 0).read()
    found = {f"step/{key}": sums / read.weight for key, sums in read.sums.items()}
    last = HostBatches({k: v[-1:] for k, v in given.arrays.items()}, given.weights[-1:], 1)
    evaluation = engine.evaluate([last], keep_outputs=True)
    found |= {f"eval/{key}": np.asarray(value) for key, value in evaluation.metrics.items()}
    found |= {"outputs": evaluation.outputs, "examples": np.asarray(evaluation.examples)}
    return gradients | found | {k: v for k, v in engine.state().items() if not k.startswith("optimizer/")}


def on_devices(engine: Engine, given: HostBatches, data: DataSpec) -> HostBatches:
    """Returns batches that say where their examples are, of an engine that keeps the split."""
    arrays = {key: given.arrays[key].reshape(-1, *each.shape)[::-1] for key, each in data.arrays.items()}
    cache_on_device(engine, ArraySource(arrays, data.arrays))
    if not caches_split(engine):
        return given
    rows = np.arange(STEPS * BATCH, dtype=np.int32)[::-1].reshape(STEPS, BATCH)
    return HostBatches({ROW: rows, WEIGHT: given.arrays[WEIGHT]}, given.weights, STEPS)


def plain(name: str) -> dict[str, Array]:
    """Trains with Keras 3's own `train_on_batch`, loss and optimizer on one device."""
    import keras

    from runner.engine.jax.adapter import Keras3Factory
    from runner.engine.jax.names import Names
    from runner.optim.stock import stock_optimizer

    made = config(name, "plain", {"batch": 1}, "replicated")
    data, given = spec(name), batches(name)
    model = Keras3Factory(made.model, data, made.trainer.seed).build()
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    loss = {
        "two_inputs": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "regression": keras.losses.MeanSquaredError(),
        "multilabel": entropy,
    }[name]
    model.compile(optimizer=stock_optimizer(made.optimizer, STEPS, keras), loss=loss)
    (target,) = _TASKS[name]["target"]
    x = {
        key: given.arrays[key].astype(np.float32) / 255 if data.arrays[key].is_image else given.arrays[key]
        for key in data.inputs
    }
    real = given.arrays[WEIGHT] > 0
    losses: list[float] = []
    gradients: dict[str, Array] = {}
    for step in range(STEPS):
        model.reset_metrics()
        rows = {key: value[step][real[step]] for key, value in x.items()}
        wanted = given.arrays[target][step][real[step]].astype(np.int32 if name == "two_inputs" else np.float32)
        wanted = wanted[:, None] if wanted.ndim == 1 and name == "regression" else wanted
        taken = rows if len(rows) > 1 else next(iter(rows.values()))
        gradients = gradients or gradients_of(model, loss, taken, wanted)
        losses.append(model.train_on_batch(taken, wanted))
    rows = {key: value[-1][real[-1]] for key, value in x.items()}
    outputs = np.asarray(model(rows if len(rows) > 1 else next(iter(rows.values())), training=False))
    final = {path: np.array(variable.value) for path, variable in Names(model).variables.items()}
    own = np.asarray(loss(wanted, outputs))
    return gradients | final | {"step/loss": np.asarray(losses), "eval/loss": own, "outputs": outputs}


def gradients_of(model: Any, loss: Any, x: Any, y: Array) -> dict[str, Array]:
    """Returns the gradients of Keras's loss and regularization by path."""
    import jax

    from runner.engine.jax.names import Names

    def total(trainable: list[Any]) -> Any:
        outputs, _, added = model.stateless_call(trainable, [], x, training=True, return_losses=True)
        return loss(y, outputs) + sum(added)

    paths = {id(variable): path for path, variable in Names(model).variables.items()}
    found = jax.grad(total)([variable.value for variable in model.trainable_variables])
    pairs = zip(model.trainable_variables, found, strict=True)
    return {f"gradient/{paths[id(variable)]}": np.asarray(value) for variable, value in pairs}


def main() -> None:
    """Writes `<case>:<name>` arrays of every case."""
    out, engine, axes, layout = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
    arrays: dict[str, Array] = {}
    for name in NAMES:
        registry.load(config(name, engine, axes, layout))
        got = plain(name) if engine == "plain" else on_mesh(name, engine, axes, layout)
        arrays |= {f"{name}:{key}": value for key, value in got.items()}
    np.savez(out, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
