"""The mesh's side: the config's engine, stepped as training steps it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runner.config.errors import EngineError
from runner.data.base import Array
from runner.engine import make_engine
from runner.engine.base import StepMetrics, cache_on_device, caches_split
from runner.optim.paths import is_variable
from runner.task.base import LOSS
from runner.verify.request import Request


def train(request: Request, start: Mapping[str, Array]) -> dict[str, Array]:
    """Trains on the mesh from the single device's weights.

    Args:
      request: config and batches.
      start: canonical path to initial value, for every variable.

    Returns:
      The run's arrays, see `runner.verify.compare.compare`; `initial/` holds the engine's own initial weights.

    Raises:
      ConfigError: the engine refuses the config.
      EngineError: its canary failed, or a variable has another shape than on the single device.
    """
    name = request.config.engine.name
    engine = make_engine(request.config, request.data, request.total_steps)
    engine.build()
    own = engine.state()
    slots = {path: np.zeros_like(value) for path, value in own.items() if not is_variable(path)}
    initial = {path: value for path, value in own.items() if path not in slots}
    for path in sorted(set(initial) & set(start)):
        if initial[path].shape != start[path].shape:
            shapes = list(start[path].shape), list(initial[path].shape)
            raise EngineError(f"{path} has shape {shapes[0]} on one device, engine {name} gives it {shapes[1]}")
    engine.load_state({path: start.get(path, value) for path, value in initial.items()} | slots)
    cache_on_device(engine, request.source())
    if caches_split(engine):  # as in training
        request = request.by_row()
    gradients = engine.gradients(request.batches, 0)
    losses, done = [], 0
    for stack in request.stacks():
        losses.append(_mean_losses(engine.train_steps(engine.place(stack), done).read()))
        done += stack.steps
    final = engine.state()
    return {
        **{f"initial/{path}": value for path, value in initial.items()},
        "loss": np.concatenate(losses),
        **{f"gradient/{path}": value for path, value in gradients.items()},
        **{f"final/{path}": final[path] for path in initial},
        **{path: final[path] for path in slots},
    }


def _mean_losses(metrics: StepMetrics) -> Array:
    return np.asarray(metrics.sums[LOSS] / metrics.weight)
