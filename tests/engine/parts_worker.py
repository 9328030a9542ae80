"""Runs in a process of its own, because virtual devices can't change within one: trains in parts and with averages.

Usage: python -m tests.engine.parts_worker OUT.npz ENGINE, with ENGINE `keras_dtensor`, `jax` or `stock` (Keras 3's
own).
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from runner.config.schema import EmaConfig, RunConfig
from runner.engine.base import DataSpec, HostBatches, as_float
from runner.plan.command import compile_step
from tests.engine import cases

DATA = DataSpec(cases.INPUT_SHAPE, cases.CLASSES)
STEPS, CALL, DECAY = 12, 5, 0.8
CASES = {"whole": (1, None), "parts": (4, None), "average": (1, DECAY), "both": (2, DECAY)}


def config_of(engine: str, parts: int, decay: float | None, optimizer: str = "adam_global_norm_cosine") -> RunConfig:
    """Returns the config of one case, of an optimizer with clipping and a schedule that counts steps or another."""
    chosen = replace(cases.OPTIMIZERS[optimizer], ema=EmaConfig(decay))
    config = cases.config({"batch": 2}, chosen)
    config.engine.name, config.engine.canary = engine, False
    config.trainer.accumulate_steps, config.dataset.batch_size = parts, cases.BATCH
    return config


def batches(*, padded: bool = True) -> HostBatches:
    """Returns batches, of which the fourth lacks a part and more of its examples."""
    found = cases.batches(STEPS)
    if padded:
        found.weights[3, 70:] = 0
    return found


def trained(config: RunConfig) -> dict[str, Any]:
    """Trains in calls of one and of several steps; returns losses, states, weights of each step, evaluations."""
    from runner.engine import make_engine

    engine = make_engine(config, DATA, STEPS)
    engine.build()
    given, done, losses, weights = batches(), 0, [], []
    gradients = engine.gradients(given, 0)
    for size in (1, 1, 1, 1, 1, 1, 1, CALL):
        losses.append(engine.train_steps(engine.place(call(given, done, size)), done).read().loss)
        done += size
        weights.append(engine.state()["d1/kernel"])
    final = engine.state()
    found = {"loss": np.concatenate(losses), "weights": np.stack(weights[:7])}
    found |= {f"gradient/{path}": value for path, value in gradients.items()} | final
    found["eval"] = np.asarray(engine.evaluate([padded_batch(given)]).loss)
    found["plain"] = np.asarray(engine.plain_model()(as_float(given.images[0]), training=False))
    found |= again(engine, final, given)
    compile_step(engine, DATA, cases.BATCH, CALL)
    moved = engine.collectives()
    found["count"], found["bytes"] = (np.asarray(sum(getattr(c, key) for c in moved)) for key in ("count", "bytes"))
    return found


def call(given: HostBatches, start: int, steps: int) -> HostBatches:
    """Returns so many batches in the arrays of a call, which all have one length."""
    rows = np.minimum(np.arange(start, start + CALL), given.steps - 1)
    return HostBatches(given.images[rows], given.labels[rows], given.weights[rows], steps)


def padded_batch(given: HostBatches) -> HostBatches:
    """Returns the fourth batch, which is padded."""
    return HostBatches(given.images[3:4], given.labels[3:4], given.weights[3:4], 1)


def again(engine: Any, final: dict[str, Any], given: HostBatches) -> dict[str, Any]:
    """Trains on from a state that was loaded; evaluates the averages as if they were the weights."""
    losses = []
    for _ in range(2):
        engine.load_state(final)
        engine.train_steps(engine.place(call(given, 3, 1)), STEPS).read()
        losses.append(engine.train_steps(engine.place(call(given, 5, 1)), STEPS + 1).read().loss)
    averages = {path.removeprefix("ema/"): value for path, value in final.items() if path.startswith("ema/")}
    engine.load_state({**final, **averages})
    found = {"twice": np.concatenate(losses), "eval_weights": np.asarray(engine.evaluate([padded_batch(given)]).loss)}
    engine.load_state(final)
    return found


def stock(parts: int, decay: float | None) -> dict[str, Any]:
    """Trains Keras 3 with its own accumulation or average: a batch is handed over in its parts.

    At a constant rate, for Keras's schedules count parts.
    """
    import keras

    from runner.engine.jax.adapter import Keras3Factory, Names
    from runner.optim import rules as optimizer

    config = config_of("jax", parts, decay, "adam")
    model = Keras3Factory(config.model, DATA, config.trainer.seed).build(stock=True)
    more: dict[str, Any] = {"gradient_accumulation_steps": parts} if parts > 1 else {}
    more |= {"use_ema": True, "ema_momentum": decay} if decay is not None else {}
    made = optimizer.reference(config.optimizer, STEPS, keras)
    own = type(made).from_config({**made.get_config(), **more})
    model.compile(optimizer=own, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    given = batches(padded=False)
    size = cases.BATCH // parts
    for images, labels in zip(as_float(given.images), given.labels, strict=True):
        for part in range(parts):
            model.train_on_batch(images[part * size :][:size], labels[part * size :][:size])
    found = {path: np.array(variable.value) for path, variable in Names(model).variables.items()}
    if decay is not None:
        averages = own._model_variables_moving_average
        found |= {f"ema/{path}": np.array(v.value) for path, v in zip(Names(model).variables, averages, strict=True)}
    return found


def ours(parts: int, decay: float | None) -> dict[str, Any]:
    """Trains the engine on the batches that `stock` gets."""
    from runner.engine import make_engine

    engine = make_engine(config_of("jax", parts, decay, "adam"), DATA, STEPS)
    engine.build()
    engine.train_steps(engine.place(batches(padded=False)), 0).read()
    return engine.state()


def main() -> None:
    """Runs every case and writes `<case>:<name>` arrays."""
    engine = sys.argv[2]
    environment = "dtensor" if engine == "keras_dtensor" else "jax_environment"
    name = "keras_dtensor" if engine == "keras_dtensor" else "jax"
    importlib.import_module(f"runner.engine.{environment}").prepare_environment(config_of(name, 1, None))
    arrays: dict[str, Any] = {}
    for case, (parts, decay) in CASES.items():
        if engine != "stock":
            arrays |= {f"{case}:{key}": value for key, value in trained(config_of(name, parts, decay)).items()}
        elif case in ("parts", "average"):
            arrays |= {f"ours:{case}:{key}": value for key, value in ours(parts, decay).items()}
            arrays |= {f"stock:{case}:{key}": value for key, value in stock(parts, decay).items()}
    np.savez(sys.argv[1], **arrays)


if __name__ == "__main__":
    main()
