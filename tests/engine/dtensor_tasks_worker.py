"""Trains tasks and inputs other than one label an image on DTensor meshes, or plain tf_keras on one device.

Usage: python -m tests.engine.dtensor_tasks_worker OUT.npz JSON, with JSON {"axes": {...} or null for plain tf_keras,
"layout": of `tasks_worker.LAYOUTS`, "inputs": name of an input -> spec}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from runner.config.schema import ModelConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.task.base import DataSpec, OutputSpec
from runner.task.registry import make_task
from tests.configs import with_keys
from tests.engine import tasks_worker as tasks

TOKENS, WORDS = "tokens", 11
NAMES = (*tasks.NAMES, TOKENS)
_TOKENS = {"words": ArraySpec((6,), "int32", ("sequence",)), "next": ArraySpec((6, 2), "float32")}


def build_tokens(keras: Any, inputs: Mapping[str, ArraySpec], outputs: OutputSpec) -> Any:
    """Builds numbers for each word: outputs of rank 3."""
    (spec,) = inputs.values()
    words = keras.Input(spec.shape, dtype=spec.dtype, name="words")
    x = keras.layers.Embedding(WORDS, 8, name="table")(words)
    x = keras.layers.Dense(16, "tanh", name="d1")(x)
    return keras.Model(words, keras.layers.Dense(outputs.units, name="d2")(x))


def spec(name: str) -> DataSpec:
    """Returns what an engine is built for."""
    if name != TOKENS:
        return tasks.spec(name)
    return DataSpec(_TOKENS, make_task(TaskConfig("regression", ["next"]), _TOKENS))


def config(name: str, request: Mapping[str, Any]) -> RunConfig:
    """Returns the config of a run."""
    axes = request["axes"] or {"batch": 1}
    made = tasks.config("regression" if name == TOKENS else name, "keras_dtensor", axes, request["layout"])
    if name == TOKENS:
        made = with_keys(made, {"model": ModelConfig(f"{__spec__.name}.build_tokens", {})})
    return with_keys(
        made,
        {
            "layout": replace(
                made.layout, inputs={k: v for k, v in request["inputs"].items() if k in spec(name).arrays}
            )
        },
    )


def batches(name: str) -> HostBatches:
    """Returns drawn batches; the last step's end is padding."""
    if name != TOKENS:
        return tasks.batches(name)
    drawn, rng = tasks.batches("regression"), np.random.default_rng(6)
    shape = (tasks.STEPS, tasks.BATCH, 6)
    arrays = {"words": rng.integers(0, WORDS, shape).astype(np.int32)}
    arrays["next"] = np.stack([np.sin(arrays["words"]), np.cos(np.cumsum(arrays["words"], -1))], -1).astype(np.float32)
    return HostBatches(arrays | {WEIGHT: drawn.arrays[WEIGHT]}, drawn.weights, drawn.steps)


def on_mesh(name: str, made: RunConfig) -> dict[str, Array]:
    """Trains an engine; returns gradients, losses, an evaluation of the padded batch and the final variables."""
    engine = make_engine(made, spec(name), tasks.STEPS)
    engine.build()
    given = batches(name)
    found = {f"gradient/{path}": value for path, value in engine.gradients(given, 0).items()}
    read = engine.train_steps(engine.place(given), 0).read()
    last = HostBatches({k: v[-1:] for k, v in given.arrays.items()}, given.weights[-1:], 1)
    evaluation = engine.evaluate([last], keep_outputs=True)
    found |= {"loss": read.sums["loss"] / read.weight, "outputs": evaluation.outputs}
    found |= {"eval": np.asarray(evaluation.loss), "examples": np.asarray(evaluation.examples)}
    plain = engine.plain_model()(model_inputs(name, given, -1), training=False)
    return found | {"plain": np.asarray(plain)} | {path: engine.state()[path] for path in engine.placements}


def model_inputs(name: str, given: HostBatches, step: int) -> Any:
    """Returns what the model takes of the real examples of a step."""
    data, real = spec(name), given.arrays[WEIGHT][step] > 0
    found = {key: given.arrays[key][step][real] for key in data.inputs}
    found = {key: x.astype(np.float32) / 255 if data.arrays[key].is_image else x for key, x in found.items()}
    return found if len(found) > 1 else next(iter(found.values()))


def stock(name: str, made: RunConfig) -> dict[str, Array]:
    """Trains plain tf_keras with its own losses and optimizer on one device."""
    import tensorflow as tf
    import tf_keras

    from runner.engine.dtensor.adapters.keras import KerasAdapter
    from runner.engine.dtensor.adapters.paths import named_variables
    from runner.optim.stock import stock_optimizer

    tf_keras.backend.experimental.enable_tf_random_generator()
    model = KerasAdapter(made.model, spec(name), made.trainer.seed).plain()
    losses = {
        "two_inputs": tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "multilabel": tf_keras.losses.BinaryCrossentropy(from_logits=True),
    }
    loss_of = losses.get(name, tf_keras.losses.MeanSquaredError())
    target = {"two_inputs": "label", "regression": "price", "multilabel": "tags", TOKENS: "next"}[name]
    optimizer = stock_optimizer(made.optimizer, tasks.STEPS, tf_keras)
    optimizer.build(model.trainable_variables)
    given, found, seen = batches(name), {}, []
    for step in range(tasks.STEPS):
        wanted = given.arrays[target][step][given.arrays[WEIGHT][step] > 0]
        wanted = wanted[:, None] if name == "regression" else wanted
        with tf.GradientTape() as tape:
            outputs = model(model_inputs(name, given, step), training=True)
            loss = loss_of(wanted, outputs) + tf.add_n([*model.losses, tf.constant(0.0)])
        gradients = tape.gradient(loss, model.trainable_variables)
        if not step:
            found = {
                f"gradient/{path}": tf.convert_to_tensor(gradient).numpy()
                for path, gradient in zip(named_variables(model), gradients, strict=True)
            }
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.append(float(loss))
    outputs = model(model_inputs(name, given, -1), training=False)
    found |= {"loss": np.array(seen), "outputs": outputs.numpy(), "plain": outputs.numpy()}
    found |= {"eval": np.asarray(float(loss_of(wanted, outputs))), "examples": np.asarray(len(wanted))}
    return found | {path: variable.numpy() for path, variable in named_variables(model).items()}


def main() -> None:
    """Writes `<case>:<name>` arrays of every case."""
    request = json.loads(sys.argv[2])
    arrays: dict[str, Array] = {}
    for name in NAMES:
        made = config(name, request)
        registry.load(made)
        got = on_mesh(name, made) if request["axes"] else stock(name, made)
        arrays |= {f"{name}:{key}": value for key, value in got.items()}
    np.savez(sys.argv[1], **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
