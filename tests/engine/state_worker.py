"""Runs in a process of its own: trains a small transformer with each `engine.state` on four devices, and plainly.

Usage: python -m tests.engine.state_worker [brief]; prints JSON, see `main`. `brief`: only what each state holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.config.schema import ModelConfig, RunConfig
from runner.data.base import WEIGHT, Array
from runner.engine import make_engine, registry
from runner.engine.base import Engine, HostBatches
from runner.optim.paths import ema_path, is_variable, slot_path
from tests.configs import with_keys
from tests.engine import gpt_cases as cases

NAME, PARTS, DECAY, NORM = "tied", 2, 0.9, 1.0
Arrays = Mapping[str, Array]


def config(state: str, target: str = "", **options: Any) -> RunConfig:
    """Returns a run in bfloat16, of micro-batches, clipped, with averages, its state split both ways."""
    made = cases.config("jax", NAME, "batch4_model2_both", depth=1)
    made = with_keys(made, {"mesh.axes": {"batch": 2, "model": 2}})
    if target:
        made = with_keys(made, {"model": ModelConfig(f"tests.engine.state_worker.{target}", options)})
    return with_keys(
        made,
        {
            "engine.precision": "bfloat16",
            "engine.state": state,
            "trainer.accumulate_steps": PARTS,
            "optimizer.clip.global_norm": NORM,
            "optimizer.ema.decay": DECAY,
        },
    )


def built(made: RunConfig) -> Engine:
    """Returns the engine of a config."""
    engine = make_engine(made, cases.data(NAME), cases.STEPS)
    engine.build()
    return engine


def trained(engine: Engine, first: int = 0, steps: int = cases.STEPS) -> Array:
    """Trains on some of the batches, and returns the losses."""
    whole, rows = cases.batches(NAME), slice(first, first + steps)
    batches = HostBatches({name: each[rows] for name, each in whole.arrays.items()}, whole.weights[rows], steps)
    metrics = engine.train_steps(engine.place(batches), first).read()
    return np.asarray(metrics.sums["loss"] / metrics.weight)


def plain(made: RunConfig, first: Arrays, *, keeps_bfloat16: bool) -> tuple[list[float], dict[str, Array]]:
    """Trains stock Keras under its policy `bfloat16` on one device, with its own Adam on float32 copies.

    Args:
      made: the config.
      first: values of the variables.
      keeps_bfloat16: weights and slots are rounded after each step.

    Returns:
      Losses, and the last state.
    """
    import jax
    import jax.numpy as jnp
    import keras

    from runner import arrays
    from runner.engine.jax.names import Names
    from runner.model import builder, target

    data, batches = cases.data(NAME), cases.batches(NAME)
    keras.config.set_dtype_policy("bfloat16")
    build = target.load(made.model.target)
    model = build(keras=keras, **builder.data_arguments(build, made.model, data), **made.model.options)
    keras.config.set_dtype_policy("float32")
    paths = {id(variable): path for path, variable in Names(model).variables.items()}
    names = [paths[id(variable)] for variable in model.trainable_variables]
    assert {str(variable.dtype) for variable in model.trainable_variables} == {"bfloat16"}

    def loss(weights: Any, batch: Any) -> Any:
        outputs, _ = model.stateless_call(weights, model.non_trainable_variables, batch["tokens"], training=True)
        logits = outputs.astype(jnp.float32)
        return cases.loss(arrays.of(jnp), logits, batch).sum() / cases.BATCH

    gradients = jax.jit(jax.value_and_grad(loss))
    masters = [keras.Variable(np.asarray(first[path], np.float32)) for path in names]
    adam = keras.optimizers.Adam(0.01, beta_1=0.9, beta_2=0.99, epsilon=1e-3)
    adam.build(masters)
    losses, averages, size = [], dict[str, Array](), cases.BATCH // PARTS
    for step in range(cases.STEPS):
        sums: list[Any] = [0.0] * len(names)
        used, mean = [jnp.asarray(one.value, jnp.bfloat16) for one in masters], 0.0
        for part in range(PARTS):
            rows = slice(part * size, (part + 1) * size)
            batch = {key: each[step, rows] for key, each in batches.arrays.items() if key != WEIGHT}
            value, found = gradients(used, batch)
            mean += float(value)
            sums = [old + np.asarray(new, np.float32) for old, new in zip(sums, found, strict=True)]
        norm = np.sqrt(sum(np.sum(np.square(each)) for each in sums))
        adam.apply([each * NORM / max(norm, NORM) for each in sums], masters)
        losses.append(mean)
        if keeps_bfloat16:
            for variable in [*masters, *adam._momentums, *adam._velocities]:
                variable.assign(jnp.asarray(variable.value, jnp.bfloat16).astype(jnp.float32))
        now = {ema_path(path): np.asarray(one.value) for path, one in zip(names, masters, strict=True)}
        averages = {key: DECAY * averages[key] + (1 - DECAY) * now[key] if averages else now[key] for key in now}
    last = dict(zip(names, (np.asarray(one.value) for one in masters), strict=True)) | averages
    for slot, kept in (("m", adam._momentums), ("v", adam._velocities)):
        last |= {slot_path(slot, path): np.asarray(one.value) for path, one in zip(names, kept, strict=True)}
    return losses, last


def normalized(keras: Any, inputs: Any, vocabulary: int = 64) -> Any:
    """Returns a model with a statistic, a constraint and a layer to freeze."""
    del inputs
    tokens = keras.Input((cases.TOKENS,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, 8, name="table")(tokens)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Dense(8, name="held", kernel_constraint="non_neg", kernel_regularizer="l2")(x)
    return keras.Model(tokens, keras.layers.Dense(vocabulary, name="head")(x))


def looked_up(keras: Any, inputs: Any, vocabulary: int = 64) -> Any:
    """Returns a table, and a head on what it gives."""
    del inputs
    tokens = keras.Input((cases.TOKENS,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, 8, name="table")(tokens)
    return keras.Model(tokens, keras.layers.Dense(vocabulary, name="head")(x))


def apart(found: Array, expected: Array, before: Array) -> float:
    """Returns how far two results lie apart, as a share of what is new of them."""
    new = np.asarray(expected, np.float64) - np.asarray(before, np.float64)
    return float(np.linalg.norm(np.asarray(found, np.float64) - expected) / np.linalg.norm(new))


def compared(state: str) -> dict[str, Any]:
    """Trains on the mesh and plainly, and returns what differs; goes on from half of it, in a new engine."""
    made = config(state)
    engine = built(made)
    first = engine.state()
    kinds = {path: str(value.dtype) for path, value in first.items()}
    losses = trained(engine)
    last = engine.state()
    again = built(made)
    trained(again, 0, 2)
    half = again.state()
    other = built(made)
    other.load_state(half)
    trained(other, 2, 2)
    resumed = other.state()
    variables = {path: value for path, value in first.items() if is_variable(path)}
    wanted, ends = plain(made, variables, keeps_bfloat16=state == "bfloat16")
    distances = {
        path: apart(last[path], value, first[path] if is_variable(path) else np.zeros_like(value))
        for path, value in ends.items()
    }
    return {
        "kinds": kinds,
        "losses": [losses.tolist(), wanted],
        "apart": distances,
        "missing": sorted(set(ends) ^ set(last)),
        "resumed": sorted(path for path, value in last.items() if resumed[path].tobytes() != value.tobytes()),
        "plain": {str(variable.dtype) for variable in engine.plain_model().weights} == {"float32"},
    }


def held(state: str) -> dict[str, Any]:
    """Returns the dtypes of a state with a statistic and a frozen weight, and the least entry of a constrained one."""
    made = config(state, "normalized")
    made = with_keys(made, {"model.trainable": ["(norm|held|head)/.*"]})
    engine = built(made)
    if state == "bfloat16":
        trained(engine)
    values = engine.state()
    least = float(values["held/kernel"].astype(np.float32).min())
    return {"kinds": {path: str(value.dtype) for path, value in values.items()}, "least": least}


def frequent(state: str, rows: int) -> Array:
    """Returns the gradient of the mean loss of rows of one token; it is the same for any number of them."""
    made = config(state, "looked_up")
    made = with_keys(made, {"dataset.batch_size": rows, "trainer.accumulate_steps": 1})
    token = 7
    tokens = np.full((1, rows, cases.TOKENS), token, np.int32)
    weight = np.ones(tokens.shape[:2], np.float32)
    batches = HostBatches({"tokens": tokens, "label": tokens + 1, WEIGHT: weight}, weight, 1)
    engine = built(made)
    return np.asarray(engine.gradients(batches, 0)["table/embeddings"][token], np.float64)


def main() -> None:
    """Prints what each state holds, and where the runs and the first draws differ."""
    registry.load(config("float32"))
    if sys.argv[1:] == ["brief"]:
        few_and_many = 2, 256
        off = {}
        for state in ("float32", "bfloat16", "master"):
            few, many = (frequent(state, rows) for rows in few_and_many)
            off[state] = float(abs(many / few - 1).max())
        print(json.dumps({"frequent": off} | {state: held(state) for state in ("bfloat16", "master")}))
        return
    import jax.numpy as jnp

    found = {state: compared(state) for state in ("bfloat16", "master")}
    draws = {state: built(config(state)).state() for state in ("float32", "bfloat16", "master")}
    rounded = {path: np.asarray(value, jnp.bfloat16) for path, value in draws["float32"].items() if is_variable(path)}
    differing = [path for path, value in rounded.items() if draws["bfloat16"][path].tobytes() != value.tobytes()]
    differing += [
        path for path, value in draws["float32"].items() if draws["master"][path].tobytes() != value.tobytes()
    ]
    print(json.dumps({"found": found, "draws": differing}))


if __name__ == "__main__":
    main()
