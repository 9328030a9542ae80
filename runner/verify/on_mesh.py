"""The mesh's side: the config's engine, which trains as in a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from runner.data.base import Array
from runner.engine import make_engine
from runner.engine.common import Engine
from runner.engine.optim import norms
from runner.layout.paths import is_variable
from runner.model.padding import check_functions
from runner.task.base import LOSS
from runner.verify import points
from runner.verify.meshproof.by_path import below, chosen, keyed
from runner.verify.request import Request

Warn = Callable[[str], object]


def train(request: Request, reference: Mapping[str, Array], warn: Warn = print) -> dict[str, Array]:
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
    initial = chosen(own_state, filter(is_variable, own_state))
    engine.cache_on_device(request.source())
    start = dict(own_state)
    for path, value in initial.items():
        # A variable that only one side has is reported by the comparison, which lists all of them.
        start[path] = reference.get(f"initial/{path}", value)
    engine.load_state(start)
    trained = request
    if engine.caches:
        # Training reads the examples from the devices too.
        trained = request.by_row()
    gradients = engine.gradients(trained.batches, 0)
    stepped = {}
    compared = norms.names(request.config.optimizer)
    if request.data.task.own_step:
        stepped = _first_changes(engine, trained)
        compared = request.data.task.step_metrics
    # Key -> name of a metric.
    metrics = {LOSS: LOSS} | {f"{points.METRIC}/{name}": name for name in compared}
    means = defaultdict(list)
    done = 0
    for stack in trained.stacks():
        of_steps = engine.train_steps(engine.place(stack), done).read()
        for key, name in metrics.items():
            means[key].append(of_steps.sums[name] / of_steps.weight)
        done += stack.steps
    arrays = keyed("initial", initial)
    for key, values in means.items():
        arrays[key] = np.concatenate(values)
    arrays |= keyed(points.GRADIENT, gradients) | keyed(points.STEPPED, stepped)
    arrays |= points.of_end(engine.state(), initial)
    return arrays | _at_points(engine, trained, request, reference, warn)


def _first_changes(engine: Engine, request: Request) -> dict[str, Array]:
    """Returns what the first step changes of each trained variable; the state is put back."""
    before = engine.state()
    engine.train_steps(engine.place(request.stack_of(0)), 0).read()
    after = engine.state()
    engine.load_state(before)
    return {path: after[path] - before[path] for path in engine.trainable}


def _at_points(
    engine: Engine, request: Request, full_request: Request, reference: Mapping[str, Array], warn: Warn
) -> dict[str, Array]:
    """Returns the arrays of each point, see `runner.verify.points`."""
    arrays: dict[str, Array] = {}
    task = full_request.data.task
    for number in points.numbers(reference):
        step = _load(engine, reference, number)
        padded = full_request.at_point(reference, number)
        if padded is not full_request and task.reads_batch:
            # Before its first step, training rejects a loss that padding changes. So does this.
            batch = padded.stack(step, 1)
            check_functions(*engine.with_and_without_others(batch, int((batch.weights > 0).sum())))
        batches = full_request.evaluation(step)
        engine.mixes_rows(batches[-1])
        evaluation = engine.evaluate(batches, keep_outputs=True)
        for warning in task.warnings(evaluation):
            warn(warning)
        evaluated = points.prefix(number, points.EVALUATED)
        for name in below(evaluated, reference):
            arrays[f"{evaluated}/{name}"] = np.asarray([evaluation.metrics[name]])
        point_request = request.at_point(reference, number)
        stack = point_request.stack_of(step)
        arrays |= keyed(points.prefix(number, points.GRADIENT), engine.gradients(stack, step))
        of_step = engine.train_steps(engine.place(stack), step).read()
        arrays[f"point{number}/{points.LOSS}"] = np.asarray(of_step.sums[LOSS] / of_step.weight)
        arrays |= keyed(points.prefix(number, points.END), engine.state())
        if point_request is not request:
            _load(engine, reference, number)
            again = point_request.refilled(step).stack_of(step)
            engine.train_steps(engine.place(again), step).read()
            arrays |= keyed(points.PADDING, engine.state())
    return arrays


def _load(engine: Engine, reference: Mapping[str, Array], number: int) -> int:
    """Loads the state of a point and returns the steps that were done before it."""
    engine.load_state(engine.state() | below(points.prefix(number, points.START), reference))
    return points.step_of(reference, number)
