"""The training loop, the same for every engine and every task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from runner.checkpoint import stopping
from runner.checkpoint.files import DamagedError
from runner.checkpoint.metric_history import MetricHistory
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.recorder import LogPoints, MetricRecorder
from runner.checkpoint.resume import load
from runner.checkpoint.saver import Saver
from runner.checkpoint.stopping import Objective
from runner.cluster.team import current
from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine import lengths
from runner.engine.base import HostBatches, PlacedBatches
from runner.engine.common import Engine
from runner.engine.lengths import RunLength
from runner.engine.optim import norms, schedules
from runner.errors import Interrupted, NotFiniteError
from runner.task.base import Evaluation
from runner.task.metrics import TEST, prefixed
from runner.train import feed
from runner.train.callbacks import Callbacks
from runner.train.display import Display, evaluation_line
from runner.train.meter import Meter
from runner.train.profile import Profiler

# Seconds between two points of the throughput: often enough for a curve of a short run, seldom enough that the store
# gets far fewer of these than of metrics.
_SECONDS_BETWEEN_RATES = 0.5

# A tag of the run: what of its state could not be saved.
UNSAVED = "runner.unsaved"


@dataclass(frozen=True)
class Result:
    """The result of a training.

    Attributes:
      meter: time of its steps, without warm-up and evaluation.
      taken: step of the weights that the engine has: the last, or with early stopping the best.
      evaluation: of these weights, on the data that selects.
      test: of these weights, on the test split; None if the test split is the data that selects.
      ended: why training ended, in words.
      epoch_means: means of the training metrics over the last period, such as the last epoch, by name.
      unsaved: why the state, or with early stopping the best state, could not be saved; None: it is saved.
    """

    steps: int
    meter: Meter
    history: MetricHistory
    taken: int
    evaluation: Evaluation
    test: Evaluation | None
    ended: str
    epoch_means: Mapping[str, float]
    unsaved: str | None = None

    @property
    def reported(self) -> Evaluation:
        """The evaluation that the run reports."""
        return self.test or self.evaluation


@dataclass(frozen=True)
class LoopHooks:
    """What the loop reports to, and what it asks between device calls.

    Attributes:
      log: takes (step, points); must not block. A resumed run logs its history again.
      notify: takes a line for the user, and tags of the run.
      stop: raises `Interrupted` in all processes at the same step, after one of them has received a signal.
      evaluated: takes the step of an evaluation, with whose weights it may write samples.
      stepped: takes the number of steps done, for the record of this attempt.
    """

    log: LogPoints
    notify: Callable[[str, Mapping[str, str]], None]
    display: Display
    stop: Callable[[], None]
    saver: Saver
    profiler: Profiler
    evaluated: Callable[[int], None] = lambda _: None
    stepped: Callable[[int], None] = lambda _: None
    callbacks: Callbacks = field(default_factory=Callbacks)


@dataclass
class _Training:
    """A training in progress.

    Attributes:
      length: of the run and of its periods, after which it may be evaluated.
      objective: what early stopping goes by; None: the run trains all its steps.
      best: what the best checkpoint is the best by; None: none is kept.
      step: training steps that were started.
      feeds: how often batches of training were begun, which names them among the processes.
    """

    config: RunConfig
    engine: Engine
    splits: feed.Splits
    hooks: LoopHooks
    recorder: MetricRecorder
    steps_per_call: feed.StepsPerCall
    length: RunLength
    objective: Objective | None
    best: Objective | None
    step: int = 0
    meter: Meter = field(default_factory=Meter)
    feeds: int = 0

    def batches(self) -> feed.Batches:
        """Returns the batches of the run from the present step on."""
        length = self.length
        saver = self.hooks.saver
        profiler = self.hooks.profiler
        self.feeds += 1

        def most(step: int) -> int:
            # A call must not pass the end of a period, a step that is saved, or where a trace begins or ends.
            limits = [next(length.ends(step)) - step]
            for limit in (saver.steps_left(step), profiler.steps_left(step)):
                if limit is not None:
                    limits.append(limit)
            return min(limits)

        return feed.training(
            self.config.dataset,
            self.config.trainer,
            self.splits.train,
            length.epoch,
            length.total,
            self.steps_per_call,
            self.engine.place,
            start=self.step,
            most=most,
            number=self.feeds,
        )


def train(
    config: RunConfig, engine: Engine, splits: feed.Splits, hooks: LoopHooks, start: Checkpoint | None = None
) -> Result:
    """Trains for the length of the run, or until early stopping ends it; the engine then has the best weights.

    A run that continues has the state of the checkpoint `start` in its engine already.

    Raises:
      Interrupted: a signal came; every metric up to the last step has been logged, and the state is saved.
      EngineError: the loss is NaN or Inf.
    """
    trainer = config.trainer
    task = splits.train.task
    examples = splits.train.size
    length = lengths.run_length(config, examples, task.tokens)

    def learning_rate(step: int) -> float:
        return float(schedules.learning_rate(config.optimizer, step, length.total))

    plateau = config.optimizer.schedule.plateau
    watched = stopping.objective(plateau.metric, task.directions)

    # The gradients and the optimizers of a custom step are its own.
    norm_names: tuple[str, ...] = ()
    rate = None
    if not task.own_step:
        norm_names = norms.names(config.optimizer)
        rate = learning_rate
    recorder = MetricRecorder(
        hooks.log,
        trainer.log_every_steps,
        rate,
        metrics=(*task.step_metrics, *norm_names),
        batch_size=config.dataset.batch_size,
        tokens=task.tokens,
        by_batch=trainer.eval_mean == "batches",
        checks_loss=trainer.on_nan == "stop",
        reductions=partial(stopping.reductions, plateau, watched),
        stepped=hooks.callbacks.stepped,
    )
    training = _Training(
        config,
        engine,
        splits,
        hooks,
        recorder,
        steps_per_call=feed.steps_per_call(config.dataset, trainer, task.arrays, examples, cached=splits.train.cached),
        length=length,
        objective=stopping.objective(trainer.early_stopping.metric, task.directions),
        best=stopping.objective(trainer.checkpoint.best, task.directions),
    )
    if start is not None:
        training.step = start.step
        recorder.restore(start.step, start.history())
    return _train(training, start)


def _train(training: _Training, start: Checkpoint | None) -> Result:
    try:
        training.hooks.callbacks.begin(training.length)
        ended = _train_periods(training)
        training.hooks.callbacks.end()
        return _finish(training, ended, start)
    except Interrupted as interrupted:
        # The open window is saved as it is: the resumed run closes it where the uninterrupted run would have.
        training.recorder.drain()
        unsaved = training.hooks.saver.save_last(training.step, training.recorder)
        if unsaved:
            raise Interrupted(interrupted.signum, unsaved) from None
        raise
    except NotFiniteError:
        raise  # in all processes alike, so all of them read the calls in flight below
    except Exception:
        # To read the calls in flight takes all processes, and the others may not have this error.
        if current().count > 1:
            training.recorder.give_up()
        raise
    finally:
        # Whatever ended the training, its last points are logged before the tracker is closed. Another NaN or Inf loss
        # would hide the error that ended it.
        try:
            with suppress(NotFiniteError):
                training.recorder.flush()
        finally:
            training.hooks.profiler.close()
            training.hooks.saver.close()
            training.hooks.display.close()


def _train_periods(training: _Training) -> str:
    """Trains the periods that are left; returns why training ended."""
    trainer = training.config.trainer
    recorder = training.recorder
    hooks = training.hooks
    length = training.length
    # One source of batches for all periods: those of the next one are made ready while the last call and the
    # evaluation of this one run.
    with training.batches() as batches:
        calls = training.meter.timed(batches)
        for end in _period_ends(training):
            # Asked before a period and not after it, so that a run which is resumed after its end trains no further
            # step.
            reason = stopping.reason(trainer.early_stopping, training.objective, recorder.history.measured())
            if reason is not None:
                return reason
            _train_period(training, calls, end)
            evaluation = None
            if length.is_evaluated(end):
                # The report needs the outputs. It is of the last evaluation or, with early stopping, of any of them.
                is_last = end >= length.total
                is_reported = training.splits.test is None and (is_last or training.objective is not None)
                evaluation = _evaluate_period(training, keep_outputs=is_reported)
            hooks.display.end_period(recorder.epoch_means(), evaluation)
            # Only now, so that the checkpoint of a period's last step has its evaluation. Callbacks may fail after it.
            hooks.saver.save_if_due(training.step, recorder)
            hooks.callbacks.end_epoch(recorder.epoch_means(), evaluation)
            if hooks.callbacks.stop():
                if evaluation is None:
                    _evaluate_period(training)
                return f"a callback stopped the run after step {training.step:,}"
    reason = stopping.reason(trainer.early_stopping, training.objective, recorder.history.measured())
    return reason or length.describe_end(training.step)


def _evaluate_period(training: _Training, *, keep_outputs: bool = False) -> Evaluation:
    """Evaluates and records the present weights."""
    evaluation = _evaluate(training, training.splits.selecting, keep_outputs=keep_outputs)
    training.recorder.add_evaluation(training.step, evaluation)
    training.hooks.saver.evaluated(training.step, training.recorder)
    training.hooks.evaluated(training.step)
    return evaluation


def _period_ends(training: _Training) -> Iterator[int]:
    """Yields the ends of the periods that are left, the present step first if its evaluation was interrupted."""
    step = training.step
    evaluations = training.recorder.evaluations
    is_evaluated = bool(evaluations) and evaluations[-1][0] == step
    if training.length.is_end(step) and not is_evaluated:
        yield step
    yield from training.length.ends(step)


def _train_period(training: _Training, calls: Iterator[PlacedBatches], end: int) -> None:
    """Trains one period, or the rest of it."""
    recorder = training.recorder
    meter = training.meter
    hooks = training.hooks
    first = training.length.start(end)
    name = training.length.describe_period(end)
    hooks.display.start_period(name, end - first, training.step - first, training.length.total - end)
    if training.step == first:
        recorder.start_epoch()
    hooks.callbacks.begin_epoch(first, training.step, end)
    rate_logged = time.monotonic()
    # The time since the last period was an evaluation's.
    meter.restart()

    while training.step < end:
        placed = next(calls)
        hooks.profiler.before_call(training.step, recorder.drain)

        # Start the call. It returns before the devices are done, and everything below runs beside them.
        rate_factor = recorder.rate_factor(training.step)
        pending = training.engine.train_steps(placed, training.step, rate_factor)
        # Metrics are read one call late: those of the call before are there by now, or soon, and meanwhile the devices
        # have this call to do. A NaN or Inf loss is raised here.
        recorder.add(training.step, pending)
        training.step += placed.steps
        hooks.stepped(training.step)

        # After the metrics were read, because that is where the host waits for the devices: so the times of calls,
        # from which the size of the next one is chosen, include the devices' work.
        hooks.profiler.after_call(training.step, recorder.drain)
        training.steps_per_call.observe(meter.call_done(placed.steps))
        is_end = training.step == end
        if not is_end and time.monotonic() - rate_logged >= _SECONDS_BETWEEN_RATES:
            rate_logged = time.monotonic()
            recorder.add_rate(training.step, meter.recent)
        hooks.display.update(training.step - first, meter.recent, recorder.epoch_means())

        # Signals before a checkpoint that is due: an interrupted run is saved in any case, and once is enough. The
        # processes agree here at which step they stop.
        hooks.stop()
        # Last: a checkpoint is taken between two calls, with the metrics of all steps before it. That of the period's
        # last step waits for its evaluation.
        if not is_end:
            hooks.saver.save_if_due(training.step, recorder)

    recorder.end_epoch(training.step)
    meter.waited()
    # At least one point per period; none of a run's first calls, which compile, and none twice at its last step.
    recorder.add_rate(training.step, meter.steps_per_second)


def _finish(training: _Training, ended: str, start: Checkpoint | None) -> Result:
    """Saves the last state, takes the weights that the run ends with, and evaluates them."""
    recorder = training.recorder
    hooks = training.hooks
    splits = training.splits
    # The last window is closed first, so that the last checkpoint has it. The state is saved before another one is
    # loaded into the engine.
    recorder.flush()
    unsaved = hooks.saver.save_last(training.step, recorder)
    best_unsaved = None
    best = None if training.best is None else stopping.best(training.best, recorder.history.measured())
    if best is not None and best[0] in hooks.saver.failures:
        best_step, _ = best
        reason = hooks.saver.failures[best_step]
        best_unsaved = f"the state of step {best_step:,} could not be saved ({reason})"
        hooks.notify(f"warning: the best evaluation has no checkpoint: {best_unsaved}", {UNSAVED: best_unsaved})
    if training.objective is None or training.best is None:
        taken, evaluation = recorder.evaluations[-1]
    else:
        # With early stopping the result is the best state, so the run has failed if that is lost.
        taken, evaluation = _take_best(training, best)
        unsaved = unsaved or best_unsaved
    is_resumed = start is not None and start.step == training.step
    is_stopped = training.step < training.length.total and training.objective is None
    if splits.test is None and (is_resumed or is_stopped):
        # A run was killed after its last evaluation and resumed, or a callback stopped it. The outputs, which the
        # report needs, are in no checkpoint, and only a last evaluation keeps them.
        evaluation = _evaluate(training, splits.selecting, keep_outputs=True)
    # The test split is evaluated once, with the weights that the run ends with, when nothing is left to be decided.
    test = None
    if splits.test is not None:
        test = _evaluate(training, splits.test, keep_outputs=True)
        hooks.log(training.step, prefixed(TEST, test.metrics))
        hooks.notify(evaluation_line("test", test), {})
    return Result(
        steps=training.step,
        meter=training.meter,
        history=recorder.history,
        taken=taken,
        evaluation=evaluation,
        test=test,
        ended=ended,
        epoch_means=recorder.epoch_means(),
        unsaved=unsaved,
    )


def _take_best(training: _Training, best: tuple[int, float] | None) -> tuple[int, Evaluation]:
    """Loads the best weights that are available into the engine; returns their step and their evaluation.

    Those are the best checkpoint's, or the last ones. A line says so if they are not of the best evaluation, whose
    step and value `best` has.
    """
    notify = training.hooks.notify
    evaluations = dict(training.recorder.evaluations)
    last = training.recorder.evaluations[-1]
    if best is None:
        return last
    best_step, _ = best
    checkpoint = None
    try:
        checkpoint = training.hooks.saver.best()
    except DamagedError as error:
        notify(f"warning: {error}", {})
    step, _ = last
    if checkpoint is not None and checkpoint.step in evaluations:
        step = checkpoint.step
    if step != best_step:
        notify(f"warning: the best evaluation, of step {best_step:,}, has no checkpoint", {})
    if checkpoint is None or step == training.step:
        return last
    load(training.engine, checkpoint)
    reason = "the best evaluation"
    if step != best_step:
        reason += " that has a checkpoint"
    notify(f"using the weights of step {step:,}, {reason}", {})
    if training.splits.test is not None:
        return step, evaluations[step]
    # Evaluated again, because the report needs the outputs, which only the last evaluation keeps.
    return step, _evaluate(training, training.splits.selecting, keep_outputs=True)


def _evaluate(training: _Training, examples: feed.Examples, *, keep_outputs: bool) -> Evaluation:
    config = training.config

    def interruptible() -> Iterator[HostBatches]:
        for batch in batches:
            training.hooks.stop()
            yield batch

    limit = config.trainer.limit_eval_batches
    batches = feed.evaluation_of(config.dataset, config.task, training.engine, examples, limit)
    if config.trainer.eval_mean == "examples":
        return training.engine.evaluate(interruptible(), keep_outputs=keep_outputs)
    evaluations: list[Evaluation] = []
    for batch in interruptible():
        evaluations.append(training.engine.evaluate([batch], keep_outputs=keep_outputs))
    return _mean(evaluations)


def _mean(batches: Sequence[Evaluation]) -> Evaluation:
    """Returns the plain mean over batches, whatever their sizes (`trainer.eval_mean=batches`)."""
    metrics: dict[str, float] = {}
    for name in batches[0].metrics:
        metrics[name] = float(np.mean([batch.metrics[name] for batch in batches]))
    totals: dict[str, Array] = {}
    for name in batches[0].totals:
        totals[name] = np.sum([batch.totals[name] for batch in batches], axis=0)
    examples = sum(batch.examples for batch in batches)
    outputs = [batch.outputs for batch in batches]
    # An engine drops the outputs of a large split. Those of all batches are there, or none.
    joined = outputs[0][:0]
    if all(map(len, outputs)):
        joined = np.concatenate(outputs)
    return Evaluation(metrics, examples, totals, joined)
