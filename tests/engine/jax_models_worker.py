"""Runs in a process of its own: how far models trained by the engine `jax` on meshes are from stock Keras 3.

Usage: python -m tests.engine.jax_models_worker JSON, with JSON {"models": {name: {"target": ..., "options": {...}}},
"meshes": [[axes, layout], ...], "steps": of SGD with momentum, "rate": of learning, "batch": examples of one}; a
layout is a preset's name, or `split` for all over the axis `model`. Prints name -> mesh -> what `apart` returns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import keras
import numpy as np

from runner.config.schema import OptimizerConfig, RunConfig
from runner.data.base import Array
from runner.engine.base import HostBatches
from runner.engine.jax.adapter import Keras3Factory
from runner.engine.jax.engine import JaxEngine
from runner.engine.jax.layers.adopted import masks_from_scope
from runner.engine.jax.names import Names
from runner.engine.jax.private import training_argument
from runner.model import scope
from tests.configs import with_keys
from tests.engine import cases
from tests.engine.jax_worker import config_of

Found = dict[str, Array]


def stock(config: RunConfig, batches: HostBatches) -> Found:
    """Trains stock Keras 3 on one device: its layers, its loss, its optimizer, the masks of the run."""
    model = Keras3Factory(config.model, cases.data(), config.trainer.seed).build()
    paths = {id(variable): path for path, variable in Names(model).variables.items()}
    training = training_argument(model, training=True)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rule = config.optimizer
    optimizer = keras.optimizers.SGD(rule.learning_rate, momentum=rule.momentum)
    optimizer.build(model.trainable_variables)

    def loss(trainable: Any, others: Any, images: Any, labels: Any, step: Any) -> Any:
        with scope.enter(scope.Scope(config.trainer.seed, step)), masks_from_scope(model):
            logits, others, added = model.stateless_call(trainable, others, images, return_losses=True, **training)
        return entropy(labels, logits) + sum(added), others

    @jax.jit
    def train(state: Any, images: Any, labels: Any, step: Any) -> Any:
        trainable, others, slots = state
        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(trainable, others, images, labels, step)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return (trainable, others, slots), value, gradients

    state: Any = [[v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)]
    state.append([variable.value for variable in optimizer.variables])
    losses = []
    first_gradients = []
    for step in range(batches.steps):
        images = batches.arrays["image"][step].astype(np.float32) / 255
        state, value, gradients = train(state, images, batches.arrays["label"][step], np.int32(step))
        losses.append(value)
        first_gradients = first_gradients or gradients
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    kept = zip(variables, [*state[0], *state[1]], strict=True)
    found = {f"value:{paths[id(v)]}": np.asarray(value) for v, value in kept if id(v) in paths}
    named = zip(model.trainable_variables, first_gradients, strict=True)
    found |= {f"gradient:{paths[id(v)]}": np.asarray(value) for v, value in named}
    return found | {"loss": np.asarray(losses)}


def on_mesh(config: RunConfig, batches: HostBatches) -> Found:
    """Trains the engine."""
    engine = JaxEngine(config, cases.data(), batches.steps)
    engine.build()
    found = {f"gradient:{path}": value for path, value in engine.gradients(batches, 0).items()}
    metrics = engine.train_steps(engine.place(batches), 0).read()
    assert engine.collectives()
    assert {output.layer for output in engine.layer_outputs()}
    found |= {f"value:{path}": value for path, value in engine.state().items() if not path.startswith("optimizer/")}
    return found | {"loss": metrics.sums["loss"] / metrics.weight}


def apart(expected: Mapping[str, Array], got: Mapping[str, Array]) -> dict[str, float]:
    """Returns the largest difference of each array, beside the size of the array's numbers.

    A gradient that is nothing but rounding, as of a key's bias, has the size of the largest gradient instead; a
    variable that the steps moved less, has theirs.
    """
    assert set(expected) == set(got), set(expected) ^ set(got)
    largest = max(float(np.abs(value).max()) for name, value in expected.items() if name.startswith("gradient:"))
    found = {}
    for name, value in expected.items():
        size = max(float(np.sqrt(np.mean(np.square(value.astype(np.float64))))), 1e-3 * largest, 1e-6)
        found[name] = float(np.abs(got[name].astype(np.float64) - value.astype(np.float64)).max()) / size
    return found


def main() -> None:
    """Compares every model on every mesh."""
    request = json.loads(sys.argv[1])
    jax.config.update("jax_num_cpu_devices", 8)
    found: dict[str, dict[str, Any]] = {}
    expected: Found = {}
    for name, model in request["models"].items():
        for index, (axes, layout) in enumerate(request["meshes"]):
            run = {"batch": request["batch"], "options": {}} | model
            config = config_of({"engine": "jax", "axes": axes, "layout": "fsdp" if layout == "split" else layout}, run)
            if layout == "split":
                # As `fsdp` does over the batch's axis.
                (rule,) = config.layout.rules
                rule = replace(rule, shard="model", min_elements=64)
                config = with_keys(config, {"layout.rules": [rule]})
            config = with_keys(
                config, {"optimizer": OptimizerConfig("sgd", request["rate"], momentum=0.9, nesterov=False)}
            )
            batches = cases.batches(request["steps"], request["batch"])
            begun = time.monotonic()
            expected = expected if index else stock(config, batches)
            between = time.monotonic()
            distances = apart(expected, on_mesh(config, batches))
            worst = sorted(distances.items(), key=lambda item: -item[1])[:3]
            took = f"stock {between - begun:.1f} s, mesh {time.monotonic() - between:.1f} s"
            print(name, axes, took, worst, file=sys.stderr, flush=True)
            found.setdefault(name, {})[f"{'_'.join(axes)} {layout}"] = distances
    print(json.dumps(found))


if __name__ == "__main__":
    main()
