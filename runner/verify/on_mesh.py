"""The mesh's side: the config's engine, stepped as training steps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from runner.data.base import Array
from runner.engine import make_engine
from runner.engine.base import Engine, StepMetrics, cache_on_device, caches_split
from runner.errors import EngineError
from runner.model.padding import check_functions
from runner.optim.paths import is_variable
from runner.task.base import LOSS
from runner.verify import padding, points
from runner.verify.request import Request


def train(request: Request, waited: Callable[[], Mapping[str, Array]], *, ahead: bool) -> dict[str, Array]:
    """Trains on the mesh from the single device's weights, then takes gradients and a step at each generic point.

    Args:
      request: config and batches.
      waited: waits for the single device's arrays: initial values of every variable, how many losses, and the points.
      ahead: compiles the programs before it waits.

    Returns:
      The run's arrays, see `runner.verify.compare.compare`; `initial/` holds the engine's own initial weights.

    Raises:
      ConfigError: the engine refuses the config.
      EngineError: its canary failed, or a variable has another shape than on the single device.
    """
    engine = make_engine(request.config, request.data, request.total_steps)
    engine.build()
    own = engine.state()
    initial = {path: value for path, value in own.items() if is_variable(path)}
    cache_on_device(engine, request.source())
    if ahead:
        _compile(engine, request)
    reference = waited()
    engine.load_state(own | _started(initial, reference, request.config.engine.name))
    request = request.of(len(reference["loss"]))
    given = request.by_row() if caches_split(engine) else request  # as in training
    gradients = engine.gradients(given.batches, 0)
    losses = []
    done = 0
    for stack in given.stacks():
        losses.append(_mean_losses(engine.train_steps(engine.place(stack), done).read()))
        done += stack.steps
    final = engine.state()
    return {
        **{f"initial/{path}": value for path, value in initial.items()},
        "loss": np.concatenate(losses),
        **{f"gradient/{path}": value for path, value in gradients.items()},
        **{f"final/{path}": final[path] for path in initial},
        **{path: final[path] for path in own if path not in initial},
        **_at_points(engine, given, request, reference),
    }


def _compile(engine: Engine, request: Request) -> None:
    given = request.by_row() if caches_split(engine) else request
    engine.compile(engine.place(given.stacks()[0]))
    engine.gradients(given.batches, 0)


def _started(initial: Mapping[str, Array], reference: Mapping[str, Array], name: str) -> dict[str, Array]:
    """Returns the single device's initial values, of variables that the engine has too."""
    start = {path: reference[f"initial/{path}"] for path in initial if f"initial/{path}" in reference}
    for path, value in sorted(start.items()):
        if initial[path].shape != value.shape:
            shapes = list(value.shape), list(initial[path].shape)
            raise EngineError(f"{path} has shape {shapes[0]} on one device, engine {name} gives it {shapes[1]}")
    return start


def _at_points(engine: Engine, request: Request, whole: Request, reference: Mapping[str, Array]) -> dict[str, Array]:
    """Returns what each generic point gives, see `runner.verify.points` and `runner.verify.padding`.

    Args:
      engine: built.
      request: as training has it.
      whole: the same with every array, as evaluations have it.
      reference: the single device's arrays.
    """
    found: dict[str, Array] = {}
    task = whole.data.task
    for number in points.numbers(reference):
        step = _load(engine, reference, number)
        padded = padding.at_point(whole, reference, number)
        if padded is not whole and task.reads_batch:  # training rejects such a loss too
            check_functions(*engine.with_and_without_padding(padded.batch_of(step)))
        metrics = engine.evaluate(whole.evaluation(step)).metrics
        names = points.part(reference, number, points.EVALUATED)
        found |= points.keyed(number, points.EVALUATED, {name: np.asarray([metrics[name]]) for name in names})
        given = padding.at_point(request, reference, number)
        stack = given.stack_of(step)
        found |= points.keyed(number, points.GRADIENT, engine.gradients(stack, step))
        losses = _mean_losses(engine.train_steps(engine.place(stack), step).read())
        found[f"point{number}/{points.LOSS}"] = losses
        found |= points.keyed(number, points.END, engine.state())
        if given is not request:
            _load(engine, reference, number)
            again = padding.refilled(given, step).stack_of(step)
            engine.train_steps(engine.place(again), step).read()
            found |= {padding.PREFIX + path: value for path, value in engine.state().items()}
    return found


def _load(engine: Engine, reference: Mapping[str, Array], number: int) -> int:
    """Loads a generic point and returns the steps that were done before it."""
    own = engine.state()
    engine.load_state(own | points.part(reference, number, points.START))
    return points.step_of(reference, number)


def _mean_losses(metrics: StepMetrics) -> Array:
    return np.asarray(metrics.sums[LOSS] / metrics.weight)
