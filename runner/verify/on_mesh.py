"""The mesh's side: the config's engine, stepped as training steps it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runner.config.errors import EngineError
from runner.engine import make_engine
from runner.engine.base import Array, hold, holds_images
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
    slots = {path: np.zeros_like(value) for path, value in own.items() if path.startswith(("optimizer/", "ema/"))}
    initial = {path: value for path, value in own.items() if path not in slots}
    for path in sorted(set(initial) & set(start)):
        if initial[path].shape != start[path].shape:
            shapes = list(start[path].shape), list(initial[path].shape)
            raise EngineError(f"{path} has shape {shapes[0]} on one device, engine {name} gives it {shapes[1]}")
    engine.load_state({path: start.get(path, value) for path, value in initial.items()} | slots)
    hold(engine, request.batches.images.reshape(-1, *request.data.input_shape))
    if holds_images(engine):  # as in training
        request = request.by_place()
    gradients = engine.gradients(request.batches, 0)
    losses, done = [], 0
    for stack in request.stacks():
        losses.append(engine.train_steps(engine.place(stack), done).read().loss)
        done += stack.steps
    final = engine.state()
    return {
        **{f"initial/{path}": value for path, value in initial.items()},
        "loss": np.concatenate(losses),
        **{f"gradient/{path}": value for path, value in gradients.items()},
        **{f"final/{path}": final[path] for path in initial},
        **{path: final[path] for path in slots},
    }
