"""The training loop, the same for every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from runner.config.errors import EngineError, Interrupted, NotFiniteError
from runner.config.schema import RunConfig
from runner.data import Dataset
from runner.engine.base import Array, Engine, EvalMetrics, holds_images
from runner.host.signals import StopRequest
from runner.optim import rules as optimizer
from runner.training import feed, lengths, stopping
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.resume import load
from runner.training.checkpoint.saver import Saver
from runner.training.display import Display
from runner.training.history import History, LogPoints, Meter, Restore
from runner.training.profile import Profiler

_SECONDS_BETWEEN_RATES = 0.5
_RESTORES = "runner.nan_restores"
UNSAVED = "runner.unsaved"  # a run's tag: what of its state could not be saved


@dataclass(frozen=True)
class Start:
    """Where a run goes on.

    Attributes:
      step: training steps done.
      history: metrics so far, as `History.arrays` returned them.
    """

    step: int
    history: Mapping[str, Array]


@dataclass(frozen=True)
class Result:
    """What training leaves behind.

    Attributes:
      steps: training steps done.
      meter: their time, warm-up and evaluation excluded.
      history: logged windows and evaluations.
      taken: step of the weights that the engine holds: the last, or with early stopping the best.
      evaluation: of these weights.
      ended: why training ended, in words.
      epoch_loss: mean training loss of the last epoch.
      epoch_accuracy: mean training accuracy of the last epoch.
      unsaved: why the state, or with early stopping the best, could not be saved, in words; null: it is saved.
    """

    steps: int
    meter: Meter
    history: History
    taken: int
    evaluation: EvalMetrics
    ended: str
    epoch_loss: float
    epoch_accuracy: float
    unsaved: str | None = None


@dataclass(frozen=True)
class Around:
    """What training reports to, and asks between device calls.

    Attributes:
      log: takes (step, points); must not block. A run that goes on logs its past again.
      forget: takes a step; what was logged after it is done again.
      tell: takes a line for the user, and tags of the run.
      display: shows progress.
      stop: is asked whether a signal came.
      saver: is asked for checkpoints.
      profiler: traces a few steps.
    """

    log: LogPoints
    forget: Callable[[int], None]
    tell: Callable[[str, Mapping[str, str]], None]
    display: Display
    stop: StopRequest
    saver: Saver
    profiler: Profiler


@dataclass
class _Run:
    """A training in progress."""

    config: RunConfig
    engine: Engine
    data: Dataset
    around: Around
    history: History
    calls: feed.CallSize
    per_epoch: int
    step: int = 0
    meter: Meter = field(default_factory=Meter)
    ahead: tuple[int, feed.Batches] | None = None  # an epoch, and what is being made ready of it

    def batches(self, epoch: int) -> feed.Batches:
        """Returns the batches of an epoch, or of what is left of it; those that were begun ahead where they fit."""
        first, ahead = epoch * self.per_epoch, self.ahead
        if ahead is not None and ahead[0] == epoch and self.step <= first:
            self.ahead = None
            return ahead[1]
        self.close()
        saver, profiler = self.around.saver, self.around.profiler

        def most(taken: int) -> int | None:
            bounds = (saver.steps_left(first + taken), profiler.steps_left(first + taken))
            return min((bound for bound in bounds if bound is not None), default=None)

        done, held = max(self.step - first, 0), holds_images(self.engine)
        place, train = self.engine.place, self.data.train
        return feed.training(self.config, train, epoch, self.per_epoch, self.calls, place, done, most, held)

    def begin_ahead(self, epoch: int) -> None:
        """Has the next epoch's first batches made ready while this one's last steps and its evaluation run."""
        if epoch < self.config.trainer.epochs:
            self.ahead = epoch, self.batches(epoch).start()

    def close(self) -> None:
        """Gives up what was begun ahead."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead[1].close()


def train(config: RunConfig, engine: Engine, data: Dataset, around: Around, start: Start | None = None) -> Result:
    """Trains for the config's epochs, or until early stopping ends it.

    Args:
      config: a checked config.
      engine: built; for a run that goes on, with its state loaded.
      data: training and evaluation splits.
      around: log, display, checkpoints, signals.
      start: where a run goes on; null: at the beginning.

    Returns:
      What training left behind; with early stopping the engine holds the best weights.

    Raises:
      Interrupted: a signal came; every metric up to the last step has been logged, and the state is saved.
      EngineError: the loss is not finite, and `trainer.on_nan` has no more to do about it.
    """
    run, trainer = _begin(config, engine, data, around, start), config.trainer
    try:
        ended = None
        while ended is None:
            try:
                ended = _train_epochs(run)
            except NotFiniteError as error:
                _go_back(run, error)
        run.history.flush()
        unsaved = around.saver.save_last(run.step, run.history)
        best_unsaved = around.saver.best_unsaved()
        if best_unsaved is not None:
            around.tell(f"warning: the best evaluation has no checkpoint: {best_unsaved}", {UNSAVED: best_unsaved})
        if trainer.early_stopping.metric is None:
            taken = run.history.evaluations[-1]
        else:  # its result is the best
            taken, unsaved = _take_best(run, trainer.early_stopping.metric), unsaved or best_unsaved
        if start is not None and start.step == run.step:  # killed after its last evaluation, whose logits are gone
            taken = (taken[0], _evaluate(run))
    except Interrupted as interrupted:
        try:
            run.history.drain()  # an open window is saved as it is: it is closed where a run that goes on closes it
        except NotFiniteError:  # what would have been gone back from; a run that goes on from here meets it again
            if trainer.on_nan != "restore":
                raise
        else:
            if unsaved := around.saver.save_last(run.step, run.history):
                raise Interrupted(interrupted.signum, unsaved) from None
        raise
    finally:
        try:
            with suppress(NotFiniteError):  # it would take the place of what ended the run
                run.history.flush()
        finally:
            run.close()
            around.profiler.close()
            around.saver.close()
            around.display.close()
    return Result(run.step, run.meter, run.history, *taken, ended, *run.history.epoch_means(), unsaved)


def _begin(config: RunConfig, engine: Engine, data: Dataset, around: Around, start: Start | None) -> _Run:
    trainer, per_epoch = config.trainer, lengths.epoch_steps(config, data.train.size)
    total = lengths.total_steps(config, data.train.size)

    def rate(step: int) -> float:
        return float(optimizer.learning_rate(config.optimizer, step, total))

    history = History(around.log, trainer.log_every_steps, rate, on_nan=trainer.on_nan)
    run = _Run(
        config, engine, data, around, history, feed.call_size(config, data.train, holds_images(engine)), per_epoch
    )
    if start is not None:
        run.step = start.step
        history.restore(start.step, start.history)
    if start is not None or trainer.on_nan == "restore":  # there is always a checkpoint to go back to
        around.saver.begin(run.step, history)
    return run


def _train_epochs(run: _Run) -> str:
    """Trains to the end; returns why it ended."""
    trainer, history, saver = run.config.trainer, run.history, run.around.saver
    for epoch in range(_first_epoch(run.step, run.per_epoch, history), trainer.epochs):
        reason = stopping.reason(trainer.early_stopping, history.evaluations)
        if reason is not None:
            return reason
        _train_epoch(run, epoch)
        due = (epoch + 1) % trainer.evaluate_every == 0 or epoch + 1 == trainer.epochs
        fresh = _evaluate(run) if due else None
        if fresh is not None:
            history.add_evaluation(run.step, fresh)
            saver.evaluated(run.step, history, fresh)
        run.around.display.end_epoch(*history.epoch_means(), fresh)
        saver.save_if_due(run.step, history)
    reason = stopping.reason(trainer.early_stopping, history.evaluations)
    return reason or f"trained for {trainer.epochs} epochs"


def _train_epoch(run: _Run, epoch: int) -> None:
    """Trains one epoch, or the rest of it."""
    first, history, around = epoch * run.per_epoch, run.history, run.around
    done, batch_size = run.step - first, run.config.dataset.batch_size
    around.display.start_epoch(epoch, run.per_epoch, done)
    if not done:
        history.start_epoch()
    rated = time.monotonic()
    run.meter.restart()

    with run.batches(epoch) as batches:
        for placed in batches:
            around.profiler.before_call(run.step, history.drain)
            pending = run.engine.train_steps(placed, run.step, history.rate_factor(run.step))
            if run.step + placed.steps == first + run.per_epoch:
                run.begin_ahead(epoch + 1)
            # The call before is read only now, so that its metrics never hold up a call.
            history.add(run.step, pending)
            run.step += placed.steps
            around.profiler.after_call(run.step, history.drain)
            run.calls.observe(run.meter.call_done(placed.steps))
            epoch_done = run.step == first + run.per_epoch
            if not epoch_done and time.monotonic() - rated >= _SECONDS_BETWEEN_RATES:
                rated = time.monotonic()
                history.add_rate(run.step, run.meter.recent, batch_size)
            around.display.update(run.step - first, run.meter.recent, *history.epoch_means())
            around.stop.raise_if_requested()
            if not epoch_done:  # the epoch's last step is saved with its evaluation
                around.saver.save_if_due(run.step, history)
    history.drain()
    run.meter.waited()
    # Logged at least once an epoch, however short it is; not twice at its last step.
    history.add_rate(run.step, run.meter.steps_per_second, batch_size)


def _go_back(run: _Run, error: NotFiniteError) -> None:
    """Goes back to the last good checkpoint, at a lower learning rate; raises where `trainer.on_nan` does not.

    Step `error.step` computed its loss with the weights that the step before left. A checkpoint of these would give
    the same loss again, so a good one has fewer steps.
    """
    trainer, history, around = run.config.trainer, run.history, run.around
    if trainer.on_nan != "restore":
        raise error
    if len(history.restores) >= trainer.nan_restores:
        raise EngineError(
            f"the loss is {error.loss} at step {error.step}, after trainer.nan_restores={trainer.nan_restores} "
            "returns to a checkpoint; lower optimizer.learning_rate or trainer.nan_rate_factor"
        ) from error
    checkpoint = around.saver.go_back(error.step - 1)
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
    around.forget(run.step)
    around.saver.save(run.step, history)  # a run that goes on from here keeps the factor
    around.tell(
        f"the loss is {error.loss} at step {error.step:,}: back to the checkpoint of step {run.step:,}, learning rate "
        f"times {factor:g} from there on",
        {_RESTORES: "; ".join(f"step {r.bad} back to {r.step}, rate x {r.factor:g}" for r in history.restores)},
    )


def _take_best(run: _Run, metric: str) -> tuple[int, EvalMetrics]:
    """Puts the best weights that are at hand into the engine; returns their step and their evaluation.

    Those are a checkpoint's, or the last ones. Where they are not of the best evaluation, that is said.
    """
    evaluations, checkpoint = dict(run.history.evaluations), None
    last, best = run.history.evaluations[-1], stopping.best(metric, run.history.evaluations)
    if best is None:
        return last
    try:
        checkpoint = run.around.saver.best()
    except DamagedError as error:
        run.around.tell(f"warning: {error}", {})
    saved = evaluations.get(checkpoint.step) if checkpoint is not None else None
    taken = stopping.best(metric, [last] if checkpoint is None or saved is None else [(checkpoint.step, saved), last])
    step = last[0] if taken is None else taken[0]
    if step != best[0]:
        run.around.tell(f"the best evaluation, of step {best[0]:,}, has no checkpoint (any more)", {})
    if checkpoint is None or step == run.step:
        return last
    load(run.engine, checkpoint)
    of = "the best evaluation" if step == best[0] else "the best one that has"
    run.around.tell(f"the weights of step {step:,}, {of}, are taken", {})
    return step, _evaluate(run)


def _first_epoch(step: int, per_epoch: int, history: History) -> int:
    """Returns the epoch that a run goes on with: one that was stopped in its evaluation is evaluated again."""
    evaluated = bool(history.evaluations) and history.evaluations[-1][0] == step
    return step // per_epoch - (1 if step and step % per_epoch == 0 and not evaluated else 0)


def _evaluate(run: _Run) -> EvalMetrics:
    split, trainer = feed.evaluated_split(run.config, run.data), run.config.trainer
    batches = feed.evaluation(split, lengths.eval_batch_size(run.config, split.size), trainer.limit_eval_batches)

    def interruptible() -> feed.HostBatchIterator:
        for batch in batches:
            run.around.stop.raise_if_requested()
            yield batch

    if trainer.eval_mean == "examples":
        return run.engine.evaluate(interruptible())
    return _mean([run.engine.evaluate([batch]) for batch in interruptible()])


def _mean(batches: Sequence[EvalMetrics]) -> EvalMetrics:
    """Returns the plain mean over batches, whatever their sizes."""
    loss, accuracy = np.mean([(one.loss, one.accuracy) for one in batches], axis=0).tolist()
    confusion = np.sum([one.confusion for one in batches], axis=0)
    logits = np.concatenate([one.logits for one in batches])
    return EvalMetrics(loss, accuracy, sum(one.examples for one in batches), confusion, logits)
