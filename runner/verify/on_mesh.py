"""The mesh's side: the config's engine, which trains as in a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from runner.data.base import Array
from runner.engine import make_engine
from runner.engine.base import StepMetrics
from runner.engine.common import Engine
from runner.engine.optim import norms
from runner.layout.paths import is_variable
from runner.model.padding import check_functions
from runner.task.base import LOSS
from runner.verify import points
from runner.verify.request import Request


def train(request: Request, reference: Mapping[str, Array], warn: Callable[[str], object] = print) -> dict[str, Array]:
    """Trains on the mesh from the single device's weights, then takes gradients and a step at each point.

    `reference` has the single device's arrays: initial values of every variable, losses, and points. The arrays that
    are returned are those of `runner.verify.points.compare`; `initial/` has the engine's own initial weights. `warn`
    gets what a run would warn of, as no comparison shows what both sides share.

    Raises:
      ConfigError: the config is invalid for the engine.
      EngineError: its start-up check failed.
      ValueError: a variable has another shape than on the single device.
    """
    engine = make_engine(request.config, request.data, request.total_steps)
    engine.build()
    own_state = engine.state()
    initial = {path: value for path, value in own_state.items() if is_variable(path)}
    engine.cache_on_device(request.source())
    # A variable that only one side has is reported by the comparison, which lists all of them.
    start = {path: reference[f"initial/{path}"] for path in initial if f"initial/{path}" in reference}
    engine.load_state(own_state | start)
    # Training reads the examples from the devices too, where the engine caches them there.
    trained = request.by_row() if engine.caches else request
    gradients = engine.gradients(trained.batches, 0)
    stepped = {}
    compared = norms.names(request.config.optimizer)
    if request.data.task.own_step:
        stepped = _first_changes(engine, trained)
        compared = request.data.task.step_metrics
    losses = []
    metrics = defaultdict(list)
    done = 0
    for stack in trained.stacks():
        of_steps = engine.train_steps(engine.place(stack), done).read()
        losses.append(_mean_losses(of_steps))
        for name in compared:
            metrics[f"{points.METRIC}/{name}"].append(of_steps.sums[name] / of_steps.weight)
        done += stack.steps
    final = engine.state()
    arrays = {f"initial/{path}": value for path, value in initial.items()}
    arrays["loss"] = np.concatenate(losses)
    arrays |= {name: np.concatenate(values) for name, values in metrics.items()}
    arrays |= {f"gradient/{path}": value for path, value in gradients.items()}
    arrays |= {f"{points.STEPPED}/{path}": value for path, value in stepped.items()}
    arrays |= {f"final/{path}": final[path] for path in initial}
    arrays |= {path: final[path] for path in own_state if path not in initial}
    arrays |= _at_points(engine, trained, request, reference, warn)
    return arrays


def _first_changes(engine: Engine, request: Request) -> dict[str, Array]:
    """Returns what the first step changes of each trained variable; the state is put back."""
    before = engine.state()
    engine.train_steps(engine.place(request.stack_of(0)), 0).read()
    after = engine.state()
    engine.load_state(before)
    return {path: after[path] - before[path] for path in engine.trainable}


def _at_points(
    engine: Engine,
    request: Request,
    full_request: Request,
    reference: Mapping[str, Array],
    warn: Callable[[str], object],
) -> dict[str, Array]:
    """Returns the arrays of each point, see `runner.verify.points`."""
    arrays: dict[str, Array] = {}
    task = full_request.data.task
    for number in points.numbers(reference):
        step = _load(engine, reference, number)
        padded = full_request.at_point(reference, number)
        if padded is not full_request and task.reads_batch:
            # Before its first step, training rejects a loss that padding changes. So does this.
            batch = padded.batch_of(step)
            check_functions(*engine.with_and_without_others(batch, int((batch.weights > 0).sum())))
        batches = full_request.evaluation(step)
        engine.mixes_rows(batches[-1])
        evaluation = engine.evaluate(batches, keep_outputs=True)
        for warning in task.warnings(evaluation):
            warn(warning)
        names = points.part(reference, number, points.EVALUATED)
        evaluated = {name: np.asarray([evaluation.metrics[name]]) for name in names}
        arrays |= points.keyed(number, points.EVALUATED, evaluated)
        point_request = request.at_point(reference, number)
        stack = point_request.stack_of(step)
        arrays |= points.keyed(number, points.GRADIENT, engine.gradients(stack, step))
        losses = _mean_losses(engine.train_steps(engine.place(stack), step).read())
        arrays[f"point{number}/{points.LOSS}"] = losses
        arrays |= points.keyed(number, points.END, engine.state())
        if point_request is not request:
            _load(engine, reference, number)
            again = point_request.refilled(step).stack_of(step)
            engine.train_steps(engine.place(again), step).read()
            arrays |= {points.PADDING + path: value for path, value in engine.state().items()}
    return arrays


def _load(engine: Engine, reference: Mapping[str, Array], number: int) -> int:
    """Loads the state of a point and returns the steps that were done before it."""
    engine.load_state(engine.state() | points.part(reference, number, points.START))
    return points.step_of(reference, number)


def _mean_losses(metrics: StepMetrics) -> Array:
    return np.asarray(metrics.sums[LOSS] / metrics.weight)
