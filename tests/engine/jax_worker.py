"""Runs in a process of its own, because virtual devices can't change within one: trains and writes arrays.

Usage: python -m tests.engine.jax_worker OUT.npz JSON, with JSON {"engine": "jax", "keras_dtensor" or "plain" (Keras
3's own training), "axes": {...}, "layout": a preset, "start": NPZ of initial states or null, "runs": [...], "plans":
whether each run is planned too, "brief": whether gradients and an evaluation are left out}.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig, RunConfig
from runner.data.base import ROW, WEIGHT, ArraySource
from runner.engine import registry
from runner.engine.base import HostBatches, cache_on_device, caches_split
from runner.model import scope
from tests.configs import with_keys
from tests.engine import cases

DATA = cases.data()


def config_of(request: dict[str, Any], run: dict[str, Any]) -> RunConfig:
    """Returns the config of one run."""
    optimizer = cases.OPTIMIZERS[run.get("optimizer", "adam")]
    config = cases.config(request["axes"] or {"batch": 1}, optimizer, run["target"])
    config = with_keys(
        config,
        {
            "model.options": run["options"],
            "engine.name": "jax" if request["engine"] == "plain" else request["engine"],
            "engine.loop": run.get("loop", "auto"),
            "dataset.batch_size": run.get("batch", cases.BATCH),
        },
    )
    layout = build(LayoutConfig, search_path.content_of(f"layout/{request['layout']}"), "layout")
    return with_keys(config, {"layout": layout})


def cached_batches(engine: Any, batches: HostBatches, cached: bool) -> HostBatches:
    """Returns batches for the engine: with `cached` it keeps their arrays, and the batches have rows instead."""
    if not cached:
        return batches
    # Kept in the reverse order, so that rows taken in order would be wrong.
    arrays = {
        name: np.ascontiguousarray(batches.arrays[name][::-1]).reshape(-1, *spec.shape)
        for name, spec in DATA.arrays.items()
    }
    cache_on_device(engine, ArraySource(arrays, DATA.arrays))
    assert caches_split(engine)
    rows = np.arange(batches.weights.size, dtype=np.int32).reshape(batches.weights.shape)[::-1]
    return replace(batches, arrays={ROW: rows, WEIGHT: batches.arrays[WEIGHT]})


def on_mesh(
    config: RunConfig, batches: HostBatches, start: dict[str, np.ndarray] | None, brief: bool, cached: bool
) -> dict[str, np.ndarray]:
    """Trains one engine; returns losses, initial and final state, and unless `brief` gradients and an evaluation."""
    from runner.engine import make_engine

    engine = make_engine(config, DATA, batches.steps)
    engine.build()
    if start:
        engine.load_state({path: start.get(path, value) for path, value in engine.state().items()})
    initial = {f"initial/{path}": value for path, value in engine.state().items()}
    host_batches = batches
    batches = cached_batches(engine, batches, cached)
    gradients = {} if brief else {f"gradient/{path}": v for path, v in engine.gradients(batches, 0).items()}
    metrics = engine.train_steps(engine.place(batches), 0).read()
    found = {name: sums / metrics.weight for name, sums in metrics.sums.items()}
    if not brief:
        evaluation = engine.evaluate([padded(host_batches)])
        found |= {"eval/loss": np.asarray(evaluation.loss), "eval/confusion": evaluation.totals["confusion"]}
    specs = {f"spec/{path}": np.array([str(axis) for axis in v.spec]) for path, v in engine.variables().items()}
    if config.engine.name == "jax":
        rows = [" ".join((c.kind, c.axis, c.phase, c.origin)) for c in engine.collectives()]
        found["collectives"] = np.array(rows, dtype=str)
        found["counted"] = np.array([str(each) for each in engine.collectives()], dtype=str)
        found |= costs(engine, batches)
    return {**initial, **gradients, **engine.state(), **specs, **found}


def planned(config: RunConfig, batches: HostBatches, cached: bool) -> dict[str, np.ndarray]:
    """Returns the collectives that an engine finds which only plans."""
    from runner.engine import make_engine

    engine = make_engine(config, DATA, batches.steps, planning=True)
    engine.build()
    engine.compile(engine.place(cached_batches(engine, batches, cached)))
    return {"planned": np.array([str(each) for each in engine.collectives()], dtype=str)}


def costs(engine: Any, batches: HostBatches) -> dict[str, np.ndarray]:
    """Returns the program's operations, and the bytes of its arguments beside those of a device's state and arrays."""
    cost = engine.program_cost()
    placed = engine.place(batches)
    state = sum(info.bytes_per_device for info in engine.variables().values())
    arrays = [*placed.arrays.values(), *(engine._split.values() if engine.caches else [])]
    rest = cost.argument_bytes - state - sum(array.addressable_shards[0].data.nbytes for array in arrays)
    return {"cost/flops": np.asarray(cost.flops), "cost/rest": np.asarray(rest)}


def padded(batches: HostBatches) -> HostBatches:
    """Returns the first batch with its last 5 examples as padding."""
    weights = batches.weights[:1].copy()
    weights[:, -5:] = 0
    return cases.stack(batches.arrays["image"][:1], batches.arrays["label"][:1], weights)


def plain(config: RunConfig, batches: HostBatches) -> dict[str, np.ndarray]:
    """Trains Keras 3's own `train_on_batch` with its own optimizer on one device."""
    import keras

    from runner.engine.jax.adapter import Keras3Factory
    from runner.engine.jax.layers.adopted import masks_from_scope
    from runner.engine.jax.names import Names
    from runner.optim.stock import stock_optimizer

    model = Keras3Factory(config.model, DATA, config.trainer.seed).build()
    initial = {f"initial/{path}": np.array(variable.value) for path, variable in Names(model).variables.items()}
    model.compile(
        optimizer=stock_optimizer(config.optimizer, batches.steps, keras),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        # The masks of dropout depend on the step, which a compiled call would keep as a constant.
        run_eagerly=bool(config.model.options.get("dropout")),
    )
    images_kb = batches.arrays["image"].astype(np.float32) / 255
    labels_kb = batches.arrays["label"]
    rows = []
    for step, (images, labels) in enumerate(zip(images_kb, labels_kb, strict=True)):
        model.reset_metrics()
        with scope.enter(scope.Scope(config.trainer.seed, np.int32(step))), masks_from_scope(model):
            rows.append(model.train_on_batch(images, labels))
    counted = padded(batches).weights[0] > 0
    labels = labels_kb[0][counted]
    logits = np.asarray(model(images_kb[0][counted], training=False))
    confusion = np.zeros((cases.CLASSES, cases.CLASSES), np.int64)
    np.add.at(confusion, (labels, logits.argmax(-1)), 1)
    shifted = logits - logits.max(-1, keepdims=True)
    entropy = np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(labels)), labels]
    final = {path: np.array(variable.value) for path, variable in Names(model).variables.items()}
    loss, accuracy = np.array(rows, np.float32).T
    found = {"loss": loss, "accuracy": accuracy, "eval/loss": entropy.mean(), "eval/confusion": confusion}
    return {**initial, **final, **found}


def main() -> None:
    """Runs every case of the request and writes `<case>:<name>` arrays."""
    request = json.loads(sys.argv[2])
    starts = dict(np.load(request["start"])) if request.get("start") else {}
    arrays: dict[str, np.ndarray] = {}
    for run in request["runs"]:
        config = config_of(request, run)
        registry.load(config)
        batches = cases.batches(run.get("steps", cases.STEPS), config.dataset.batch_size)
        key = f"{run['name']}:initial/"
        start = {name.removeprefix(key): value for name, value in starts.items() if name.startswith(key)}
        cached = run.get("cached", False)
        if request["engine"] == "plain":
            results = plain(config, batches)
        else:
            results = on_mesh(config, batches, start, request.get("brief", False), cached)
        if request.get("plans"):
            results |= planned(config, batches, cached)
        arrays |= {f"{run['name']}:{name}": value for name, value in results.items()}
    np.savez(sys.argv[1], **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
