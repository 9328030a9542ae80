"""The engine's side: two steps of training as a run makes them, and an evaluation before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.engine import make_engine
from runner.optim.paths import is_variable, slot_path
from runner.task.base import LOSS
from tests.layers.setup import MOMENTUM, RATE, STEPS, Arrays, Setup, config

EVALUATED = "batch8"  # the mesh whose evaluation is compared too: a program of its own each


def train(setup: Setup, mesh: str, start: Arrays) -> Arrays:
    """Returns what the stock side does.

    A step's gradient is read from the momentum that it leaves, v' = momentum * v - rate * gradient: so it is that of
    the program that trains.

    Args:
      setup: the cases.
      mesh: where.
      start: path -> value, of every variable.
    """
    engine = make_engine(config(mesh, setup.names), setup.data, STEPS)
    engine.build()
    own = engine.state()
    variables = {path for path in own if is_variable(path)}
    if variables != set(start):
        raise ValueError(f"the engine and stock Keras differ in variables: {sorted(variables ^ set(start))[:5]}")
    for path, value in start.items():
        if own[path].dtype != value.dtype:
            raise ValueError(f"{path} is {value.dtype} in stock Keras, {own[path].dtype} in the engine")
    engine.load_state({path: start.get(path, np.zeros_like(value)) for path, value in own.items()})
    batch = setup.batch()
    found: Arrays = {}
    if mesh == EVALUATED:
        found["outputs"] = engine.evaluate([batch], keep_outputs=True).outputs
    losses = []
    before: dict[str, Any] = dict.fromkeys(engine.trainable, 0.0)
    state: Mapping[str, Array] = {}
    for number in range(STEPS):
        metrics = engine.train_steps(engine.place(batch), number).read()
        losses.append(float(metrics.sums[LOSS][0] / metrics.weight[0]))
        state = engine.state()
        after = {path: state[slot_path("momentum", path)].astype(np.float64) for path in engine.trainable}
        found |= {f"gradient{number}/{path}": (MOMENTUM * before[path] - after[path]) / RATE for path in after}
        before = after
    found |= {f"final/{path}": state[path] for path in start}
    return found | {"loss": np.asarray(losses)}
