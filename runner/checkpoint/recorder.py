"""From the metrics of an engine's steps to logged points: means of windows and epochs, evaluations, throughput."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runner.checkpoint import metric_history
from runner.checkpoint.metric_history import MetricHistory
from runner.checkpoint.stopping import Measured
from runner.data.base import Array
from runner.engine.calls import PendingCall
from runner.errors import NotFiniteError
from runner.task.base import LOSS, Evaluation
from runner.task.metrics import EPOCH, EVAL, TRAIN, prefixed

LogPoints = Callable[[int, Mapping[str, float]], None]

# (steps done, factor of the learning rate from there on)
Reductions = Sequence[tuple[int, float]]

# A call's metrics are read when the next call has been started, so that the devices never wait for the host.
_CALLS_IN_FLIGHT = 1


class MetricRecorder:
    """Reads the metrics of steps, logs the mean of every `window` steps, and keeps what plots and checkpoints need."""

    def __init__(
        self,
        log: LogPoints,
        window: int,
        learning_rate: Callable[[int], float] | None,
        *,
        metrics: Sequence[str] = (),
        batch_size: int = 1,
        tokens: int = 0,
        by_batch: bool = False,
        checks_loss: bool = True,
        reductions: Callable[[Measured], Reductions] = lambda _: (),
        stepped: Callable[[int, Callable[[], Mapping[str, float]]], None] = lambda *_: None,
    ) -> None:
        """Starts an empty history.

        Args:
          window: steps per point of a training metric, which is their mean.
          learning_rate: steps done -> the schedule's rate; None: a custom step has optimizers of its own.
          metrics: the task's metrics of a step, without the loss.
          tokens: per example; 0: the task counts none.
          by_batch: whether a last, smaller batch has the weight of a full one in the means.
          reductions: evaluations so far -> reductions of the learning rate at plateaus.
          stepped: takes each step that was read, and what returns the means of its epoch up to it.
        """
        self._log = log
        self._window = window
        self._learning_rate = learning_rate
        self._reduce = reductions
        self._stepped = stepped
        # The reductions, and the number of evaluations that they were computed from.
        self._reductions: tuple[int, Reductions] = (0, ())
        self._batch_size = batch_size
        self._by_batch = by_batch
        self._checks_loss = checks_loss
        self._tokens = tokens
        self._pending: deque[tuple[int, PendingCall[Any]]] = deque()
        self._last_step = 0
        self._rate_step = 0
        self.history: MetricHistory = metric_history.empty(metrics)

    @property
    def evaluations(self) -> list[tuple[int, Evaluation]]:
        """Returns (step, metrics) of every evaluation; only the last may have outputs."""
        return self.history.evaluations

    def add(self, first_step: int, pending: PendingCall[Any]) -> None:
        """Takes a device call that has been started, and reads the call before it."""
        self._pending.append((first_step, pending))
        while len(self._pending) > _CALLS_IN_FLIGHT:
            self._read_call()

    def drain(self) -> None:
        """Reads every call that was not read yet."""
        while self._pending:
            self._read_call()

    def flush(self) -> None:
        """Reads every call and logs the last, shorter window, so that no step is missing."""
        self.drain()
        if self.history.open_window:
            self._close_window(self._last_step)

    def _read_call(self) -> None:
        """Reads the metrics of the oldest call, which waits until its devices are done."""
        first_step, pending = self._pending.popleft()
        metrics = pending.read()
        loss = metrics.sums[LOSS]
        bad_steps = np.zeros(0, np.int64)
        if self._checks_loss:
            bad_steps = np.flatnonzero(~np.isfinite(loss))
        columns = [metrics.sums[name] for name in self.history.names]
        rows = np.column_stack([metrics.weight, *columns]).astype(np.float64)
        if self._by_batch:
            rows *= self._batch_size / np.where(rows[:, :1] > 0, rows[:, :1], np.inf)
        # One step after another, because a float sum depends on its order: this one is the same however the steps are
        # divided into calls.
        for offset, row in enumerate(rows):
            self._last_step = first_step + offset + 1
            self.history.epoch_sums = self.history.epoch_sums + row
            self.history.open_window.append(row)
            if self._last_step % self._window == 0:
                self._close_window(self._last_step)
            self._stepped(self._last_step, self.epoch_means)
        if len(bad_steps):
            # The first one is the one to report. Calls that are still in flight are only logged.
            self._checks_loss = False
            bad = int(bad_steps[0])
            value = float(loss[bad] / (metrics.weight[bad] or 1.0))
            raise NotFiniteError(first_step + bad + 1, value)

    def _close_window(self, step: int) -> None:
        means = _means(self.history.names, np.sum(self.history.open_window, axis=0))
        self.history.open_window.clear()
        self.history.train.append((step, means))
        self._log_window(step, means)

    def _log_window(self, step: int, means: Mapping[str, float]) -> None:
        logged = prefixed(TRAIN, means)
        if self._learning_rate is not None:
            logged["learning_rate"] = self._learning_rate(step - 1) * self.rate_factor(step - 1)
        self._log(step, logged)

    def rate_factor(self, step: int) -> float:
        """Returns the factor of the schedule's rate after so many steps, by reductions at plateaus.

        It is a function of the history, so a resumed run continues with the same.
        """
        count, reductions = self._reductions
        if count != len(self.evaluations):
            reductions = self._reduce(self.history.measured())
            self._reductions = len(self.evaluations), reductions
        factor = 1.0
        for at, reduced in reductions:
            # An evaluation after `at` steps changes the rate of the steps after it.
            if at <= step:
                factor = reduced
        return factor

    def epoch_means(self) -> dict[str, float]:
        """Returns the means of the epoch's steps that were read, by name, the loss first; NaN if none was read."""
        return _means(self.history.names, self.history.epoch_sums)

    def end_epoch(self, step: int) -> None:
        """Reads every call, and logs the epoch's means; a second call for the same epoch logs nothing."""
        self.drain()
        epochs = self.history.epochs
        if not epochs or epochs[-1][0] < step:
            means = self.epoch_means()
            epochs.append((step, means))
            self._log(step, prefixed(EPOCH, means))

    def start_epoch(self) -> None:
        """Starts the means of a new epoch."""
        self.history.epoch_sums = np.zeros(1 + len(self.history.names))

    def restore(self, step: int, history: MetricHistory) -> None:
        """Continues from the history of a checkpoint after `step` steps, with this run's metrics in their order.

        All of it is logged again, because some points may have been on their way when the process died; the log drops
        those that are stored already.
        """
        names = self.history.names
        history.open_window = [_reordered(row, history.names, names) for row in history.open_window]
        history.epoch_sums = _reordered(history.epoch_sums, history.names, names)
        history.names = names
        self._last_step = step
        self.history = history
        for at, means in self.history.train:
            self._log_window(at, means)
        for at, means in self.history.epochs:
            self._log(at, prefixed(EPOCH, means))
        for at, evaluation in self.history.evaluations:
            self._log(at, prefixed(EVAL, evaluation.metrics))

    def give_up(self) -> None:
        """Forgets the calls that were not read yet."""
        self._pending.clear()

    def add_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Logs and keeps an evaluation; only the last one keeps its outputs and totals, which may be large."""
        if self.evaluations:
            at, last = self.evaluations[-1]
            self.evaluations[-1] = (at, replace(last, totals={}, outputs=last.outputs[:0], named_outputs={}))
        self.evaluations.append((step, evaluation))
        self._log(step, prefixed(EVAL, evaluation.metrics))

    def add_rate(self, step: int, steps_per_second: float) -> None:
        """Logs the throughput; does nothing if no step was measured yet, or this one was logged."""
        if steps_per_second <= 0 or step <= self._rate_step:
            return
        self._rate_step = step
        examples_per_second = steps_per_second * self._batch_size
        points = {
            "throughput/examples_per_second": examples_per_second,
            "throughput/step_ms": 1000.0 / steps_per_second,
        }
        if self._tokens:
            points["throughput/tokens_per_second"] = examples_per_second * self._tokens
        self._log(step, points)


def _reordered(row: Array, before: Sequence[str], names: Sequence[str]) -> Array:
    """Returns a row's weight and sums in another order, NaN for what it lacks, as a norm that was not logged then."""
    sums = dict(zip(before, row[1:], strict=True))
    return np.array([row[0], *(sums.get(name, np.nan) for name in names)])


def _means(names: Sequence[str], row: Array) -> dict[str, float]:
    """Returns the means by name of a row (1 + names,) of a weight and sums; NaN if the weight is 0."""
    means = row[1:] / (row[0] or np.nan)
    return dict(zip(names, means.tolist(), strict=True))
