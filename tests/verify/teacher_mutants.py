"""Verifies a loss that reads a teacher on a sound engine and on broken ones, and trains it with stock Keras.

Usage: python -m tests.verify.teacher_mutants OUT.json TEACHER.keras
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from runner.config.schema import LayoutConfig, ModelConfig, RuleConfig, RunConfig, VerifyConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.optim.stock import stock_optimizer
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.verify.compare import compare
from runner.verify.on_mesh import train
from runner.verify.request import Request
from runner.verify.rounding import noise
from runner.verify.spread import spread
from runner.verify.verdict import verdict_of
from tests.configs import with_keys
from tests.engine import cases
from tests.engine.own_step_worker import ARRAYS, AXES, BATCH, SIZE, STEPS, batches

RULES = [RuleConfig("d1/kernel", [None, "model"]), RuleConfig("big/wide/kernel", ["batch", "model"])]


def build(keras: Any, inputs: Mapping[str, ArraySpec]) -> Any:
    """Builds the student."""
    x = keras.Input(inputs["x"].shape, name="x")
    return keras.Model(x, keras.layers.Dense(1, name="d2")(keras.layers.Dense(SIZE, "tanh", name="d1")(x)))


def loss(ops: Any, outputs: Any, batch: Mapping[str, Any]) -> Any:
    """Returns the squared distances from the teacher and from the target."""
    number_b = ops.squeeze(outputs, -1)
    taught_b = ops.squeeze(batch["big"], -1)
    return 0.7 * ops.square(number_b - taught_b) + 0.3 * ops.square(number_b - batch["y"])


def config(teacher: Path) -> RunConfig:
    """Returns the config of a run."""
    options = {"target": f"{__spec__.name}.loss", "maximize": [], "minimize": [], "units": 1, "whole_batch": False}
    keys = {
        "task": TaskConfig("custom", target=["y"], teachers={"big": str(teacher)}, options=options),
        "model": ModelConfig(f"{__spec__.name}.build", {}),
        "layout": LayoutConfig(rules=RULES),
        "engine.name": "jax",
        "engine.compilation_cache": False,
        "dataset.batch_size": BATCH,
        "verify": VerifyConfig(steps=STEPS),
    }
    return with_keys(cases.config(AXES, cases.OPTIMIZERS["sgd"]), keys)


def spec(made: RunConfig) -> DataSpec:
    """Returns what an engine is built for."""
    return DataSpec(ARRAYS, make_task(made.task, ARRAYS))


def write_teacher(path: Path) -> None:
    """Writes a teacher with layers that act in another way in training."""
    import keras

    keras.utils.set_random_seed(2)
    x = keras.Input((SIZE,), name="x")
    hidden = keras.layers.Dense(16, "relu", name="wide")(x)
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dropout(0.5)(hidden))
    keras.Model(x, keras.layers.Dense(1, name="out")(hidden)).save(path)


def stock_losses(made: RunConfig, teacher: Path) -> list[float]:
    """Returns the losses of each step of `compile` and `train_on_batch`, with the teacher's answers as targets."""
    import keras

    from runner.engine.jax.adapter import Keras3Factory

    model = Keras3Factory(made.model, spec(made), made.trainer.seed).build()
    big = keras.saving.load_model(teacher, compile=False)

    def stock(targets: Any, outputs: Any) -> Any:
        return 0.7 * (outputs - targets[:, :1]) ** 2 + 0.3 * (outputs - targets[:, 1:]) ** 2

    model.compile(optimizer=stock_optimizer(made.optimizer, STEPS, keras), loss=stock)
    drawn = batches()
    losses = []
    for step in range(STEPS):
        real = drawn.arrays[WEIGHT][step] > 0
        x = drawn.arrays["x"][step][real]
        targets = np.concatenate([np.asarray(big(x, training=False)), drawn.arrays["y"][step][real][:, None]], 1)
        model.reset_metrics()
        losses.append(float(model.train_on_batch(x, targets)))
    return losses


class Judge:
    """Verifies engines against one device, which is computed once."""

    def __init__(self, made: RunConfig, data: DataSpec, given: HostBatches) -> None:
        """Computes the reference.

        Args:
          made: config of the engines.
          data: what they are built for.
          given: the batches of the steps.
        """
        from runner.verify.jax_reference import JaxReference

        self._request = Request(made, data, STEPS, given)
        reference = JaxReference(self._request)
        self._noise = size = noise(reference.longest_sum, reference.precision)
        trained = reference.train(STEPS)
        states = reference.points(trained)
        self._single = {**trained, **states, **reference.at_points(states)}

        def noisy(seed: int) -> dict[str, Any]:
            return {**reference.train(STEPS, size, seed), **reference.at_points(states, size, seed)}

        self._spread = spread(self._single, map(noisy, (1, 2, 3)))

    def verdict(self) -> dict[str, Any]:
        """Returns the verdict on the engine as it is now, and the variables that it names."""
        arrays = train(self._request, lambda: self._single, compiles_first=False)
        checks = compare(self._single, self._spread, arrays, self._noise)
        failed = sorted((check for check in checks if not check.passed), key=lambda check: -check.ratio)
        return {"verdict": verdict_of(checks), "failed": [check.variable or check.name for check in failed]}


def main() -> None:
    """Writes the verdict on each engine, and the variables that it names."""
    out, teacher = map(Path, sys.argv[1:])
    registry.load(with_keys(cases.config(AXES), {"engine.name": "jax"}))
    from runner.engine.jax import mesh

    # Before Keras makes JAX's devices, of which there would be one.
    mesh.configure(cases.config(AXES).mesh)
    write_teacher(teacher)
    made = config(teacher)

    from runner.engine.jax.engine import JaxEngine
    from runner.engine.jax.teachers import Teachers

    judge = Judge(made, spec(made), batches())

    def moving(sound: Any) -> Any:
        def train_steps(self: Any, *given: Any) -> Any:
            self._teachers = {path: 1.001 * value for path, value in self._teachers.items()}
            return sound(self, *given)

        return train_steps

    def other(sound: Any) -> Any:
        return lambda self, *given: {name: 1.01 * value for name, value in sound(self, *given).items()}

    mutations: dict[str, tuple[type, str, Callable[[Any], Any]]] = {
        "sound": (JaxEngine, "train_steps", lambda sound: sound),
        "moves": (JaxEngine, "train_steps", moving),
        "answers": (Teachers, "outputs", other),
    }
    found: dict[str, Any] = {}
    for name, (owner, attribute, mutate) in mutations.items():
        with mock.patch.object(owner, attribute, mutate(getattr(owner, attribute))):
            found[name] = judge.verdict()
    engine = make_engine(replace(made), spec(made), STEPS)
    engine.build()
    read = engine.train_steps(engine.place(batches()), 0).read()
    found["losses"] = [float(value) for value in read.sums["loss"] / read.weight]
    found["stock losses"] = stock_losses(made, teacher)
    found["specs"] = {path: str(info.spec) for path, info in engine.teacher_variables().items()}  # type: ignore[attr-defined]
    found["placements"] = sorted(engine.placements)
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
