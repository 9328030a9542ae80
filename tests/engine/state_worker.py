"""Runs in a process of its own: what each `engine.state` holds, and how it adds up gradients, on four devices."""

import json
from typing import Any

import numpy as np

from runner.config.schema import LayoutConfig, ModelConfig, RuleConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.engine.common import Engine
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import cases

TOKENS, VOCABULARY, FEW, MANY = 16, 64, 2, 256
SPECS = {name: ArraySpec((TOKENS,), "int32", ("sequence",)) for name in ("tokens", "label")}
TASK = TaskConfig("custom", ["label"], options={"target": f"{__spec__.name}.loss", "units": VOCABULARY})
RULES = [RuleConfig("table/embeddings", ["batch", "model"]), RuleConfig("head/kernel", [None, "model"])]


def loss(ops: Any, outputs: Any, batch: Any) -> Any:
    """Each row's mean cross-entropy."""
    return ops.mean(ops.sparse_cross_entropy(batch["label"], outputs), axis=-1)


def build(keras: Any, inputs: Any, *, normalized: bool = False) -> Any:
    """A table, and a head on what it gives; between them a statistic, a constraint and a layer to freeze."""
    del inputs
    tokens = keras.Input((TOKENS,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 8, name="table")(tokens)
    if normalized:
        x = keras.layers.BatchNormalization(name="norm")(x)
        x = keras.layers.Dense(8, name="held", kernel_constraint="non_neg", kernel_regularizer="l2")(x)
    return keras.Model(tokens, keras.layers.Dense(VOCABULARY, name="head")(x))


def config(state: str, batch_size: int = FEW, **options: Any) -> RunConfig:
    """A run in bfloat16, with averages, its state split both ways."""
    keys = {
        "layout": LayoutConfig(rules=RULES),
        "task": TASK,
        "model": ModelConfig(f"{__spec__.name}.build", options),
        "engine.name": "jax",
        "engine.precision": "bfloat16",
        "engine.state": state,
        "engine.compilation_cache": False,
        "optimizer.ema.decay": 0.9,
        "dataset.batch_size": batch_size,
    }
    return with_keys(cases.config({"batch": 2, "model": 2}), keys)


def built(made: RunConfig) -> Engine:
    """The engine of a config."""
    engine = make_engine(made, DataSpec(SPECS, make_task(made.task, SPECS)), 4)
    engine.build()
    return engine


def batches(rows: int) -> HostBatches:
    """One batch of rows of one token."""
    tokens = np.full((1, rows, TOKENS), 7, np.int32)
    weight = np.ones(tokens.shape[:2], np.float32)
    return HostBatches({"tokens": tokens, "label": tokens + 1, WEIGHT: weight}, weight, 1)


def held(state: str) -> dict[str, Any]:
    """The dtypes of a state with a statistic and a frozen weight, and the least entry of a constrained one."""
    made = config(state, normalized=True)
    engine = built(with_keys(made, {"model.trainable": ["(norm|held|head)/.*"]}))
    engine.train_steps(engine.place(batches(FEW)), 0).read()
    values = engine.state()
    least = float(values["held/kernel"].astype(np.float32).min())
    return {"kinds": {path: str(value.dtype) for path, value in values.items()}, "least": least}


def frequent(state: str, rows: int) -> Array:
    """The gradient of the mean loss of rows of one token; it is the same for any number of them."""
    gradients = built(config(state, rows)).gradients(batches(rows), 0)
    return np.asarray(gradients["table/embeddings"][7], np.float64)


def main() -> None:
    """Prints what each state holds, and by how much the gradients of few and of many rows differ."""
    registry.prepare(config("float32"))
    off = {}
    for state in ("float32", "bfloat16", "master"):
        few, many = (frequent(state, rows) for rows in (FEW, MANY))
        off[state] = float(abs(many / few - 1).max())
    print(json.dumps({"frequent": off} | {state: held(state) for state in ("bfloat16", "master")}))


if __name__ == "__main__":
    main()
