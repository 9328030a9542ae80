"""Runs in a process of its own, for virtual devices can't change within one: trains in micro-batches, with averages.

Usage: python -m tests.engine.microbatches_worker OUT.npz ENGINE: `keras_dtensor`, `jax`, or `stock`, Keras 3 itself.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from runner.config.schema import EmaConfig, RunConfig
from runner.data.base import WEIGHT, Array
from runner.engine import make_engine, registry
from runner.engine.base import Collective, CountsCost, HostBatches, StepMetrics
from runner.plan.command import compile_step
from tests.configs import with_keys
from tests.engine import cases

DATA = cases.data()
STEPS, CALL, DECAY = 12, 5, 0.8
CASES = {"whole": (1, None), "four": (4, None), "average": (1, DECAY), "both": (2, DECAY)}


def config_of(
    engine: str, microbatches: int, decay: float | None, optimizer: str = "adam_global_norm_cosine"
) -> RunConfig:
    """Returns the config of one case, of an optimizer with clipping and a schedule that counts steps or another."""
    chosen = replace(cases.OPTIMIZERS[optimizer], ema=EmaConfig(decay))
    config = cases.config({"batch": 2}, chosen)
    return with_keys(
        config,
        {
            "engine.name": engine,
            "engine.canary": False,
            "trainer.accumulate_steps": microbatches,
            "dataset.batch_size": cases.BATCH,
        },
    )


def batches(*, padded: bool = True) -> HostBatches:
    """Returns batches, of which the fourth lacks a micro-batch and more of its examples."""
    found = cases.batches(STEPS)
    if padded:
        found.weights[3, 70:] = 0
        found.arrays[WEIGHT][3, 70:] = 0
    return found


def images(given: HostBatches) -> Array:
    """Returns the images in [0, 1], as a model takes them."""
    return given.arrays["image"] / np.float32(255)


def trained(config: RunConfig) -> dict[str, Any]:
    """Trains in calls of one and of several steps; returns losses, states, weights of each step, evaluations."""
    engine = make_engine(config, DATA, STEPS)
    engine.build()
    given, done, losses, weights = batches(), 0, [], []
    gradients = engine.gradients(given, 0)
    for size in (1, 1, 1, 1, 1, 1, 1, CALL):
        losses.append(engine.train_steps(engine.place(call(given, done, size)), done).read())
        done += size
        weights.append(engine.state()["d1/kernel"])
    final = engine.state()
    found = {"loss": means(losses), "weights": np.stack(weights[:7])}
    found |= {f"gradient/{path}": value for path, value in gradients.items()} | final
    found["eval"] = np.asarray(engine.evaluate([padded_batch(given)]).loss)
    found["plain"] = np.asarray(engine.plain_model()(images(given)[0], training=False))
    found |= again(engine, final, given)
    moved: list[Collective] = []
    if isinstance(engine, CountsCost):
        compile_step(engine, DATA, cases.BATCH, CALL)
        moved = engine.collectives()
    found["count"], found["bytes"] = (np.asarray(sum(getattr(c, key) for c in moved)) for key in ("count", "bytes"))
    return found


def call(given: HostBatches, start: int, steps: int) -> HostBatches:
    """Returns so many batches in the arrays of a call, which all have one length."""
    rows = np.minimum(np.arange(start, start + CALL), given.steps - 1)
    return HostBatches({name: array[rows] for name, array in given.arrays.items()}, given.weights[rows], steps)


def means(losses: list[StepMetrics]) -> Array:
    """Returns the mean loss of each step."""
    return np.concatenate([each.sums["loss"] / each.weight for each in losses])


def padded_batch(given: HostBatches) -> HostBatches:
    """Returns the fourth batch, which is padded."""
    return HostBatches({name: array[3:4] for name, array in given.arrays.items()}, given.weights[3:4], 1)


def again(engine: Any, final: dict[str, Any], given: HostBatches) -> dict[str, Any]:
    """Trains on from a state that was loaded; evaluates the averages as if they were the weights."""
    losses = []
    for _ in range(2):
        engine.load_state(final)
        engine.train_steps(engine.place(call(given, 3, 1)), STEPS).read()
        losses.append(engine.train_steps(engine.place(call(given, 5, 1)), STEPS + 1).read())
    averages = {path.removeprefix("ema/"): value for path, value in final.items() if path.startswith("ema/")}
    engine.load_state({**final, **averages})
    found = {"twice": means(losses), "eval_weights": np.asarray(engine.evaluate([padded_batch(given)]).loss)}
    engine.load_state(final)
    return found


def stock(microbatches: int, decay: float | None) -> dict[str, Any]:
    """Trains Keras 3 with its own accumulation or average: a batch is handed over in its parts.

    At a constant rate, for Keras's schedules count those.
    """
    import keras

    from runner.engine.jax.adapter import Keras3Factory
    from runner.engine.jax.names import Names
    from runner.optim.stock import stock_optimizer

    config = config_of("jax", microbatches, decay, "adam")
    model = Keras3Factory(config.model, DATA, config.trainer.seed).build()
    more: dict[str, Any] = {"gradient_accumulation_steps": microbatches} if microbatches > 1 else {}
    more |= {"use_ema": True, "ema_momentum": decay} if decay is not None else {}
    made = stock_optimizer(config.optimizer, STEPS, keras)
    own = type(made).from_config({**made.get_config(), **more})
    model.compile(optimizer=own, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    given = batches(padded=False)
    size = cases.BATCH // microbatches
    for x, y in zip(images(given), given.arrays["label"], strict=True):
        for start in range(0, cases.BATCH, size):
            model.train_on_batch(x[start:][:size], y[start:][:size])
    found = {path: np.array(variable.value) for path, variable in Names(model).variables.items()}
    if decay is not None:
        averages = own._model_variables_moving_average
        found |= {f"ema/{path}": np.array(v.value) for path, v in zip(Names(model).variables, averages, strict=True)}
    return found


def ours(microbatches: int, decay: float | None) -> dict[str, Any]:
    """Trains the engine on the batches that `stock` gets."""
    engine = make_engine(config_of("jax", microbatches, decay, "adam"), DATA, STEPS)
    engine.build()
    engine.train_steps(engine.place(batches(padded=False)), 0).read()
    return engine.state()


def main() -> None:
    """Runs every case and writes `<case>:<name>` arrays."""
    engine = sys.argv[2]
    name = "jax" if engine == "stock" else engine
    registry.load(config_of(name, 1, None))
    arrays: dict[str, Any] = {}
    for case, of in CASES.items():
        if engine != "stock":
            arrays |= {f"{case}:{key}": value for key, value in trained(config_of(name, *of)).items()}
        elif case in ("four", "average"):
            arrays |= {f"ours:{case}:{key}": value for key, value in ours(*of).items()}
            arrays |= {f"stock:{case}:{key}": value for key, value in stock(*of).items()}
    np.savez(sys.argv[1], **arrays)


if __name__ == "__main__":
    main()
