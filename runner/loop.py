"""The training loop, the same for every engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from runner import feed, optimizer
from runner.checkpoint.saver import Saver
from runner.dataset import Dataset
from runner.dataset.pipeline import steps_in_epoch
from runner.display import Display
from runner.engine.base import Array, Engine, EvalMetrics
from runner.errors import ConfigError, Interrupted, refuse
from runner.history import History, LogPoints, Meter
from runner.schema import RunConfig
from runner.signals import StopRequest

_SECONDS_BETWEEN_RATES = 0.5


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
      evaluation: the last one.
      epoch_loss: mean training loss of the last epoch.
      epoch_accuracy: mean training accuracy of the last epoch.
    """

    steps: int
    meter: Meter
    history: History
    evaluation: EvalMetrics
    epoch_loss: float
    epoch_accuracy: float


def epoch_steps(config: RunConfig, examples: int) -> int:
    """Returns the steps of one epoch.

    Raises:
      ConfigError: the split holds less than one batch, or fewer steps than `trainer.steps_per_epoch`.
    """
    batch = config.dataset.batch_size
    steps = steps_in_epoch(examples, batch, config.dataset.remainder)
    if not steps:
        raise refuse(
            "dataset.batch_size",
            batch,
            allowed=f"at most {examples}, the examples of split {config.dataset.train}",
            mend="choose a smaller batch or dataset.remainder=pad",
        )
    wanted = config.trainer.steps_per_epoch
    if wanted is not None and wanted > steps:
        raise ConfigError(
            f"trainer.steps_per_epoch={wanted} is refused: split {config.dataset.train} has {steps} batches of "
            f"{batch}; set trainer.steps_per_epoch={steps} or less"
        )
    return wanted or steps


def eval_batch_size(config: RunConfig) -> int:
    """Returns the global batch size of evaluations, a multiple of the batch axis."""
    if config.dataset.eval_batch_size is not None:
        return config.dataset.eval_batch_size
    axis = config.layout.inputs["image"][0]
    size = config.mesh.axes[axis] if axis else 1
    return -(-max(config.dataset.batch_size, 1000) // size) * size


def train(
    config: RunConfig,
    engine: Engine,
    data: Dataset,
    log: LogPoints,
    display: Display,
    stop: StopRequest,
    saver: Saver,
    start: Start | None = None,
) -> Result:
    """Trains for the config's epochs.

    Args:
      config: a checked config.
      engine: built; for a run that goes on, with its state loaded.
      data: training and evaluation splits.
      log: takes (step, points); must not block. A run that goes on logs its past again.
      display: shows progress.
      stop: is asked between device calls.
      saver: is asked for checkpoints between device calls.
      start: where a run goes on; null: at the beginning.

    Returns:
      What training left behind.

    Raises:
      Interrupted: a signal came; every metric up to the last step has been logged, and the state is saved.
      EngineError: the loss is not finite and `trainer.on_nan` is `stop`.
    """
    trainer, per_epoch = config.trainer, epoch_steps(config, data.train.size)
    total = trainer.epochs * per_epoch
    history = History(
        log,
        trainer.log_every_steps,
        lambda step: float(optimizer.learning_rate(config.optimizer, step, total)),
        stop_on_nan=trainer.on_nan == "stop",
    )
    meter, step = Meter(), 0
    calls = feed.call_size(config, data.train)
    if start is not None:
        step = start.step
        history.restore(step, start.history)
    evaluation = history.evaluations[-1][1] if history.evaluations else None
    try:
        for epoch in range(_first_epoch(step, per_epoch, history), trainer.epochs):
            first = epoch * per_epoch
            done = step - first
            display.start_epoch(epoch, per_epoch, done)
            if not done:
                history.start_epoch()
            rated = time.monotonic()
            meter.restart()

            def until_save(taken: int, first: int = first) -> int | None:
                return saver.steps_left(first + taken)

            with feed.training(config, data.train, epoch, per_epoch, calls, engine.place, done, until_save) as batches:
                for placed in batches:
                    pending = engine.train_steps(placed, step)
                    # The call before is read only now, so that its metrics never hold up a call.
                    history.add(step, pending)
                    step += placed.steps
                    calls.observe(meter.call_done(placed.steps))
                    if time.monotonic() - rated >= _SECONDS_BETWEEN_RATES:
                        rated = time.monotonic()
                        _log_rate(log, step, meter.recent, config.dataset.batch_size)
                    display.update(step - first, meter.recent, *history.epoch_means())
                    stop.raise_if_requested()
                    if step < first + per_epoch:  # the epoch's last step is saved with its evaluation
                        saver.save_if_due(step, history)
            history.drain()
            meter.waited()
            # Logged at least once an epoch, however short it is.
            _log_rate(log, step, meter.steps_per_second, config.dataset.batch_size)
            due = (epoch + 1) % trainer.evaluate_every == 0 or epoch + 1 == trainer.epochs
            fresh = _evaluate(config, engine, data, stop) if due else None
            if fresh is not None:
                evaluation = fresh
                history.add_evaluation(step, fresh)
                saver.evaluated(step, history, fresh)
            display.end_epoch(*history.epoch_means(), fresh)
            saver.save_if_due(step, history)
        history.flush()
        saver.save(step, history)
    except Interrupted:
        history.flush()
        saver.save(step, history)
        raise
    finally:
        try:
            history.flush()
        finally:
            saver.close()
            display.close()
    assert evaluation is not None
    return Result(step, meter, history, evaluation, *history.epoch_means())


def _first_epoch(step: int, per_epoch: int, history: History) -> int:
    """Returns the epoch that a run goes on with: one that was stopped in its evaluation is evaluated again."""
    evaluated = bool(history.evaluations) and history.evaluations[-1][0] == step
    return step // per_epoch - (1 if step and step % per_epoch == 0 and not evaluated else 0)


def _log_rate(log: LogPoints, step: int, rate: float, batch_size: int) -> None:
    if rate > 0:
        points = {"throughput/examples_per_second": rate * batch_size, "throughput/step_ms": 1000.0 / rate}
        log(step, points)


def _evaluate(config: RunConfig, engine: Engine, data: Dataset, stop: StopRequest) -> EvalMetrics:
    batches = feed.evaluation(data.eval, eval_batch_size(config), config.trainer.limit_eval_batches)

    def interruptible() -> feed.HostBatchIterator:
        for batch in batches:
            stop.raise_if_requested()
            yield batch

    return engine.evaluate(interruptible())
