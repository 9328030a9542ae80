"""The training loop, the same for every engine and every task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from runner.config.schema import RunConfig
from runner.engine.base import Engine, HostBatches
from runner.errors import EngineError, Interrupted, NotFiniteError
from runner.optim import schedules
from runner.processes.begin import AgreedStop
from runner.processes.team import current
from runner.task.base import Evaluation
from runner.task.metrics import TEST
from runner.training import feed, lengths, stopping
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.resume import load
from runner.training.checkpoint.saver import Saver
from runner.training.display import Display, evaluation_line
from runner.training.history import History, LogPoints
from runner.training.meter import Meter
from runner.training.past import Restore
from runner.training.profile import Profiler
from runner.training.stopping import Objective
from runner.training.usage import Usage

_SECONDS_BETWEEN_RATES = 0.5
_RESTORES = "runner.nan_restores"
UNSAVED = "runner.unsaved"  # a run's tag: what of its state could not be saved


@dataclass(frozen=True)
class Result:
    """What training leaves behind.

    Attributes:
      steps: training steps done.
      meter: their time, warm-up and evaluation excluded.
      history: logged windows and evaluations.
      taken: step of the weights that the engine holds: the last, or with early stopping the best.
      evaluation: of these weights, on the data that selects.
      test: likewise, on the test split where other data selects; None: it is what selects.
      ended: why training ended, in words.
      epoch_means: of the last epoch's training metrics, by name.
      unsaved: why the state, or with early stopping the best, could not be saved, in words; null: it is saved.
    """

    steps: int
    meter: Meter
    history: History
    taken: int
    evaluation: Evaluation
    test: Evaluation | None
    ended: str
    epoch_means: Mapping[str, float]
    unsaved: str | None = None

    @property
    def reported(self) -> Evaluation:
        """The evaluation that the run's report is of."""
        return self.evaluation if self.test is None else self.test


@dataclass(frozen=True)
class LoopHooks:
    """What training reports to, and asks between device calls.

    Attributes:
      log: takes (step, points); must not block. A run that goes on logs its past again.
      forget: takes a step; what was logged after it is done again.
      notify: takes a line for the user, and tags of the run.
      display: shows progress.
      stop: is asked whether a signal came.
      saver: is asked for checkpoints.
      profiler: traces a few steps.
      usage: measures what the processes take of their machines.
      evaluated: takes the step of an evaluation, with whose weights it may write samples.
    """

    log: LogPoints
    forget: Callable[[int], None]
    notify: Callable[[str, Mapping[str, str]], None]
    display: Display
    stop: AgreedStop
    saver: Saver
    profiler: Profiler
    usage: Usage = field(default_factory=Usage)
    evaluated: Callable[[int], None] = lambda _: None


@dataclass
class _Run:
    """A training in progress."""

    config: RunConfig
    engine: Engine
    splits: feed.Splits
    hooks: LoopHooks
    history: History
    chosen: feed.StepsPerCall
    per_epoch: int
    stops_by: Objective | None
    step: int = 0
    meter: Meter = field(default_factory=Meter)
    ahead: tuple[int, feed.Batches] | None = None  # an epoch, and what is being made ready of it
    fed: int = 0  # how often batches were begun

    def batches(self, epoch: int) -> feed.Batches:
        """Returns the batches of an epoch, or of what is left of it; those that were begun ahead where they fit."""
        first = epoch * self.per_epoch
        ahead = self.ahead
        if ahead is not None and ahead[0] == epoch and self.step <= first:
            self.ahead = None
            return ahead[1]
        self.close()
        saver = self.hooks.saver
        profiler = self.hooks.profiler
        self.fed += 1

        def most(taken: int) -> int | None:
            bounds = (saver.steps_left(first + taken), profiler.steps_left(first + taken))
            return min((bound for bound in bounds if bound is not None), default=None)

        done = max(self.step - first, 0)
        train = self.splits.train
        placed = self.config, train, epoch, self.per_epoch, self.chosen, self.engine.place
        return feed.training(*placed, done, most, self.fed)

    def begin_ahead(self, epoch: int) -> None:
        """Has the next epoch's first batches made ready while this one's last steps and its evaluation run."""
        if epoch < self.config.trainer.epochs:
            self.ahead = epoch, self.batches(epoch).start()

    def close(self) -> None:
        """Gives up what was begun ahead."""
        ahead = self.ahead
        self.ahead = None
        if ahead is not None:
            ahead[1].close()


def train(
    config: RunConfig, engine: Engine, splits: feed.Splits, hooks: LoopHooks, start: Checkpoint | None = None
) -> Result:
    """Trains for the config's epochs, or until early stopping ends it.

    Args:
      config: a checked config, whose metrics are named.
      engine: built; for a run that goes on, with its state loaded.
      splits: examples to train and to evaluate on.
      hooks: log, display, checkpoints, signals.
      start: checkpoint that a run goes on from; null: it begins.

    Returns:
      What training left behind; with early stopping the engine holds the best weights.

    Raises:
      Interrupted: a signal came; every metric up to the last step has been logged, and the state is saved.
      EngineError: the loss is not finite, and `trainer.on_nan` has no more to do about it.
    """
    run = _begin(config, engine, splits, hooks, start)
    try:
        ended = None
        while ended is None:  # a return to a checkpoint begins again from there
            try:
                ended = _train_epochs(run)
            except NotFiniteError as error:
                _go_back(run, error)
        # The last window is closed first, so that the last checkpoint holds it; and the state is saved before anything
        # else is loaded into the engine.
        run.history.flush()
        hooks.usage.finish(run.step)
        unsaved = hooks.saver.save_last(run.step, run.history)
        best_unsaved = hooks.saver.best_unsaved()
        if best_unsaved is not None:
            hooks.notify(f"warning: the best evaluation has no checkpoint: {best_unsaved}", {UNSAVED: best_unsaved})
        if run.stops_by is None:
            taken, evaluation = run.history.evaluations[-1]
        else:  # its result is the best
            (taken, evaluation), unsaved = _take_best(run, run.stops_by), unsaved or best_unsaved
        if splits.test is None and start is not None and start.step == run.step:
            evaluation = _evaluate(run, splits.selecting, keep_outputs=True)  # those of before the kill are gone
        # The test split is looked at once, when nothing is left to be decided, with the weights that are taken.
        test = None if splits.test is None else _test(run, splits.test)
    except Interrupted as interrupted:
        try:
            run.history.drain()  # an open window is saved as it is: it is closed where a run that goes on closes it
        except NotFiniteError:  # what would have been gone back from; a run that goes on from here meets it again
            if config.trainer.on_nan != "restore":
                raise
        else:
            if unsaved := hooks.saver.save_last(run.step, run.history):
                raise Interrupted(interrupted.signum, unsaved) from None
        raise
    except Exception as error:
        if current().count > 1 and not isinstance(error, NotFiniteError):
            run.history.give_up()  # to read what is out takes the others, which may have no such error
        raise
    finally:
        try:
            with suppress(NotFiniteError):  # it would take the place of what ended the run
                run.history.flush()
        finally:
            run.close()
            hooks.profiler.close()
            hooks.saver.close()
            hooks.display.close()
    means = run.history.epoch_means()
    return Result(run.step, run.meter, run.history, taken, evaluation, test, ended, means, unsaved)


def _begin(config: RunConfig, engine: Engine, splits: feed.Splits, hooks: LoopHooks, start: Checkpoint | None) -> _Run:
    trainer = config.trainer
    train = splits.train
    per_epoch = lengths.epoch_steps(config, train.size)
    total = lengths.total_steps(config, train.size)

    def rate(step: int) -> float:
        return float(schedules.learning_rate(config.optimizer, step, total))

    history = History(
        hooks.log, trainer.log_every_steps, rate, metrics=train.task.step_metrics,
        batch_size=config.dataset.batch_size, tokens=train.task.tokens,
        by_batch=trainer.eval_mean == "batches", on_nan=trainer.on_nan,
    )  # fmt: skip
    chosen = feed.steps_per_call(config, train.task.arrays, train.size, cached=train.cached)
    stops_by = stopping.objective(trainer.early_stopping.metric, train.task.directions)
    run = _Run(config, engine, splits, hooks, history, chosen, per_epoch, stops_by)
    if start is not None:
        run.step = start.step
        history.restore(start.step, start.history())
    if start is not None or trainer.on_nan == "restore":  # there is always a checkpoint to go back to
        hooks.saver.begin(run.step, history)
    return run


def _train_epochs(run: _Run) -> str:
    """Trains to the end; returns why it ended."""
    trainer = run.config.trainer
    history = run.history
    hooks = run.hooks
    for epoch in range(_first_epoch(run.step, run.per_epoch, history), trainer.epochs):
        # Asked before the epoch and not after it, so that a run that goes on from its end trains no step more.
        reason = stopping.reason(trainer.early_stopping, run.stops_by, history.evaluations)
        if reason is not None:
            return reason
        _train_epoch(run, epoch)
        last = epoch + 1 == trainer.epochs
        fresh = None
        if last or (epoch + 1) % trainer.evaluate_every == 0:
            # Outputs are for the report, which is of the last evaluation or, with early stopping, of any.
            reported = run.splits.test is None and (last or run.stops_by is not None)
            fresh = _evaluate(run, run.splits.selecting, keep_outputs=reported)
            history.add_evaluation(run.step, fresh)
            hooks.saver.evaluated(run.step, history, fresh)
            hooks.evaluated(run.step)
        hooks.display.end_epoch(history.epoch_means(), fresh)
        # Only now: a checkpoint of an epoch's last step holds its evaluation.
        hooks.saver.save_if_due(run.step, history)
    reason = stopping.reason(trainer.early_stopping, run.stops_by, history.evaluations)
    return reason or f"trained for {trainer.epochs} epochs"


def _train_epoch(run: _Run, epoch: int) -> None:
    """Trains one epoch, or the rest of it."""
    first = epoch * run.per_epoch
    history = run.history
    hooks = run.hooks
    done = run.step - first
    hooks.display.start_epoch(epoch, run.per_epoch, done)
    if not done:
        history.start_epoch()
    rated = time.monotonic()
    run.meter.restart()

    with run.batches(epoch) as batches:
        for placed in run.meter.timed(batches):
            hooks.profiler.before_call(run.step, history.drain)
            pending = run.engine.train_steps(placed, run.step, history.rate_factor(run.step))
            if run.step + placed.steps == first + run.per_epoch:
                run.begin_ahead(epoch + 1)
            # The call before is read only now, so that its metrics never hold up a call.
            history.add(run.step, pending)
            run.step += placed.steps
            hooks.profiler.after_call(run.step, history.drain)
            hooks.usage.sample(run.step)
            run.chosen.observe(run.meter.call_done(placed.steps))
            epoch_done = run.step == first + run.per_epoch
            if not epoch_done and time.monotonic() - rated >= _SECONDS_BETWEEN_RATES:
                rated = time.monotonic()
                history.add_rate(run.step, run.meter.recent)
            hooks.display.update(run.step - first, run.meter.recent, history.epoch_means())
            # A signal is answered before a save that is due: the state is saved for it in any case.
            hooks.stop.raise_if_requested()
            if not epoch_done:  # the epoch's last step is saved with its evaluation
                hooks.saver.save_if_due(run.step, history)
    history.end_epoch(run.step)
    run.meter.waited()
    # Logged once an epoch at least, but not of a run's first calls, which compile; not twice at its last step.
    history.add_rate(run.step, run.meter.steps_per_second if run.meter.steps else 0.0)


def _go_back(run: _Run, error: NotFiniteError) -> None:
    """Goes back to the last good checkpoint, at a lower learning rate; raises where `trainer.on_nan` does not.

    Step `error.step` computed its loss with the weights that the step before left. A checkpoint of these would give
    the same loss again, so a good one has fewer steps.
    """
    trainer = run.config.trainer
    history = run.history
    hooks = run.hooks
    if trainer.on_nan != "restore":
        raise error
    if len(history.past.restores) >= trainer.nan_restores:
        raise EngineError(
            f"the loss is {error.loss} at step {error.step}, after trainer.nan_restores={trainer.nan_restores} "
            "returns to a checkpoint; lower optimizer.learning_rate or trainer.nan_rate_factor"
        ) from error
    checkpoint = hooks.saver.go_back(error.step - 1)
    if checkpoint is None:
        raise EngineError(
            f"the loss is {error.loss} at step {error.step}, and there is no checkpoint from before to go back to; "
            "lower optimizer.learning_rate or set trainer.checkpoint.every_steps"
        ) from error
    history.wait()  # a call that is still running would write over what is loaded
    load(run.engine, checkpoint)
    factor = history.rate_factor(run.step) * trainer.nan_rate_factor
    run.step = checkpoint.step
    history.go_back(Restore(error.step, run.step, factor), checkpoint.history())
    hooks.forget(run.step)
    hooks.saver.save(run.step, history)  # a run that goes on from here keeps the factor
    restores = "; ".join(f"step {r.bad} back to {r.step}, rate x {r.factor:g}" for r in history.past.restores)
    hooks.notify(
        f"the loss is {error.loss} at step {error.step:,}: back to the checkpoint of step {run.step:,}, learning rate "
        f"times {factor:g} from there on",
        {_RESTORES: restores},
    )


def _take_best(run: _Run, goal: Objective) -> tuple[int, Evaluation]:
    """Puts the best weights that are at hand into the engine; returns their step and their evaluation.

    Those are a checkpoint's, or the last ones. Where they are not of the best evaluation, that is said.
    """
    evaluations = dict(run.history.evaluations)
    checkpoint = None
    notify = run.hooks.notify
    last = run.history.evaluations[-1]
    best = stopping.best(goal, run.history.evaluations)
    if best is None:
        return last
    try:
        checkpoint = run.hooks.saver.best()
    except DamagedError as error:
        notify(f"warning: {error}", {})
    saved = evaluations.get(checkpoint.step) if checkpoint is not None else None
    taken = stopping.best(goal, [last] if checkpoint is None or saved is None else [(checkpoint.step, saved), last])
    step = last[0] if taken is None else taken[0]
    if step != best[0]:
        notify(f"the best evaluation, of step {best[0]:,}, has no checkpoint (any more)", {})
    if checkpoint is None or step == run.step:
        return last
    load(run.engine, checkpoint)
    of = "the best evaluation" if step == best[0] else "the best one that has"
    notify(f"the weights of step {step:,}, {of}, are taken", {})
    # Evaluated again where the report needs its outputs, which only the last evaluation keeps.
    found = evaluations[step] if run.splits.test is not None else None
    return step, found or _evaluate(run, run.splits.selecting, keep_outputs=True)


def _first_epoch(step: int, per_epoch: int, history: History) -> int:
    """Returns the epoch that a run goes on with: one that was stopped in its evaluation is evaluated again."""
    evaluated = bool(history.evaluations) and history.evaluations[-1][0] == step
    return step // per_epoch - (1 if step and step % per_epoch == 0 and not evaluated else 0)


def _test(run: _Run, test: feed.Examples) -> Evaluation:
    """Evaluates the test split, and says and logs it."""
    found = _evaluate(run, test, keep_outputs=True)
    run.hooks.log(run.step, {f"{TEST}{name}": value for name, value in found.metrics.items()})
    run.hooks.notify(evaluation_line("test", found), {})
    return found


def _evaluate(run: _Run, examples: feed.Examples, *, keep_outputs: bool) -> Evaluation:
    trainer = run.config.trainer

    def interruptible() -> Iterator[HostBatches]:
        for batch in feed.evaluation_of(run.config, examples, trainer.limit_eval_batches):
            run.hooks.stop.raise_if_requested()
            yield batch

    if trainer.eval_mean == "examples":
        return run.engine.evaluate(interruptible(), keep_outputs=keep_outputs)
    return _mean([run.engine.evaluate([batch], keep_outputs=keep_outputs) for batch in interruptible()])


def _mean(batches: Sequence[Evaluation]) -> Evaluation:
    """Returns the plain mean over batches, whatever their sizes."""
    names = batches[0].metrics
    totals = batches[0].totals
    outputs = [one.outputs for one in batches]
    kept = all(len(rows) for rows in outputs)  # an engine keeps no more of them than memory is good for
    return Evaluation(
        {name: float(np.mean([one.metrics[name] for one in batches])) for name in names},
        sum(one.examples for one in batches),
        {name: np.sum([one.totals[name] for one in batches], axis=0) for name in totals},
        np.concatenate(outputs) if kept else outputs[0][:0],
    )
