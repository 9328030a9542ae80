"""From the engine's metrics of steps to logged points: windows of steps, epoch means, throughput."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.data.base import Array
from runner.engine.base import Pending
from runner.errors import NotFiniteError
from runner.task.base import LOSS, Evaluation
from runner.task.metrics import EPOCH, EVAL, TRAIN
from runner.training import past
from runner.training.past import Past, Restore

LogPoints = Callable[[int, Mapping[str, float]], None]
_CALLS_IN_FLIGHT = 1  # a call's metrics are read when the next one has been started


class History:
    """Reads metrics back late, logs the mean of every `window` steps, and keeps what the plots need.

    Attributes:
      past: what was read and logged. After a return to a checkpoint, what was logged behind it is logged again, and
        the past holds the later of the two.
    """

    def __init__(
        self,
        log: LogPoints,
        window: int,
        learning_rate: Callable[[int], float],
        *,
        metrics: Sequence[str] = (),
        batch_size: int = 1,
        tokens: int = 0,
        by_batch: bool = False,
        on_nan: str = "stop",
    ) -> None:
        """Begins with no step.

        Args:
          log: takes (step, points).
          window: steps a point of a training metric is the mean of.
          learning_rate: steps done -> the schedule's rate.
          metrics: the task's metrics of a step, beside the loss.
          batch_size: global.
          tokens: of an example, where the task counts in them; 0: it does not.
          by_batch: a last, smaller batch counts as one in the means.
          on_nan: `trainer.on_nan`.
        """
        self._log = log
        self._window = window
        self._learning_rate = learning_rate
        self._on_nan = on_nan
        self._batch_size = batch_size
        self._by_batch = by_batch
        self._watches = on_nan != "continue"
        self._tokens = tokens
        self._pending: deque[tuple[int, Pending]] = deque()
        self._last_step = 0
        self.past: Past = past.begin(metrics)

    @property
    def evaluations(self) -> list[tuple[int, Evaluation]]:
        """Returns (step, metrics) of every evaluation; only the last may hold outputs."""
        return self.past.evaluations

    def add(self, first_step: int, pending: Pending) -> None:
        """Takes a started call; reads the call before it."""
        self._pending.append((first_step, pending))
        while len(self._pending) > _CALLS_IN_FLIGHT:
            self._read()

    def drain(self) -> None:
        """Reads every call that is still out."""
        while self._pending:
            self._read()

    def flush(self) -> None:
        """Reads every call and logs the last, shorter window, so that no step is left out."""
        self.drain()
        if self.past.open:
            self._close_window(self._last_step)

    def _read(self) -> None:
        first, pending = self._pending.popleft()
        metrics = pending.read()
        loss = metrics.sums[LOSS]
        bad = np.flatnonzero(~np.isfinite(loss)) if self._watches else np.zeros(0, np.int64)
        good = int(bad[0]) if len(bad) and self._on_nan == "restore" else len(loss)  # the rest is done again
        rows = np.column_stack([metrics.weight, *(metrics.sums[name] for name in self.past.names)]).astype(np.float64)
        if self._by_batch:
            rows *= self._batch_size / np.where(rows[:, :1] > 0, rows[:, :1], np.inf)
        for offset in range(good):  # one step after another: sums don't depend on how steps are cut into calls
            self._last_step = first + offset + 1
            self.past.epoch = self.past.epoch + rows[offset]
            self.past.open.append(rows[offset])
            if self._last_step % self._window == 0:
                self._close_window(self._last_step)
        if len(bad):
            self._watches = False  # the first is the one to name; what is still in flight is only logged
            value = float(loss[bad[0]] / (metrics.weight[bad[0]] or 1.0))
            raise NotFiniteError(first + int(bad[0]) + 1, value, self._on_nan)

    def _close_window(self, step: int) -> None:
        means = _means(self.past.names, np.sum(self.past.open, axis=0))
        self.past.open.clear()
        self.past.train.append((step, means))
        self._log_window(step, means)

    def _log_window(self, step: int, means: Mapping[str, float]) -> None:
        rate = self._learning_rate(step - 1) * self.rate_factor(step - 1)
        self._log(step, {f"{TRAIN}{name}": mean for name, mean in means.items()} | {"learning_rate": rate})

    def rate_factor(self, step: int) -> float:
        """Returns what the learning rate is multiplied by after so many steps: 1 unless a checkpoint was restored."""
        factors = [restore.factor for restore in self.past.restores if restore.step <= step]
        return factors[-1] if factors else 1.0

    def epoch_means(self) -> dict[str, float]:
        """Returns the means of the epoch's steps that were read, by name, the loss first; NaN where none was."""
        return _means(self.past.names, self.past.epoch)

    def end_epoch(self, step: int) -> None:
        """Reads every call, and logs and keeps the epoch's means; a second call for the epoch logs nothing."""
        self.drain()
        if not self.past.epochs or self.past.epochs[-1][0] < step:
            self.past.epochs.append((step, self.epoch_means()))
            self._log_epoch(*self.past.epochs[-1])

    def _log_epoch(self, step: int, means: Mapping[str, float]) -> None:
        self._log(step, {f"{EPOCH}{name}": mean for name, mean in means.items()})

    def start_epoch(self) -> None:
        """Begins the means of a new epoch."""
        self.past.epoch = np.zeros(1 + len(self.past.names))

    def arrays(self) -> dict[str, Array]:
        """Returns everything that `restore` needs; what is still in flight must have been drained."""
        return past.to_arrays(self.past)

    def restore(self, step: int, arrays: Mapping[str, Array]) -> None:
        """Goes on from what `arrays` returned after `step` steps, and logs it all again: the log drops what it has."""
        self._take(step, past.from_arrays(arrays, self._batch_size))
        for at, means in self.past.train:
            self._log_window(at, means)
        for at, means in self.past.epochs:
            self._log_epoch(at, means)
        for at, evaluation in self.past.evaluations:
            self._log_evaluation(at, evaluation)
        for rate in self.past.rates:
            self._log_rate(*rate)

    def wait(self) -> None:
        """Waits for every call that is still out, and takes no notice of its metrics."""
        for _, pending in self._pending:
            pending.read()

    def give_up(self) -> None:
        """Forgets the calls that are still out."""
        self._pending.clear()

    def go_back(self, restore: Restore, arrays: Mapping[str, Array]) -> None:
        """Goes on from a checkpoint of this run, forgetting what came after it.

        Args:
          restore: which checkpoint, and why.
          arrays: what `arrays` returned there.
        """
        self._pending.clear()
        restores = [*self.past.restores, restore]  # the checkpoint may be older than the last of them
        self._take(restore.step, past.from_arrays(arrays, self._batch_size))
        self.past.restores = restores
        self._watches = True

    def _take(self, step: int, before: Past) -> None:
        """Takes a past whose metrics are this run's, and puts them in this run's order."""
        names = self.past.names
        order = [0, *(1 + before.names.index(name) for name in names)]
        before.train = [(at, {name: means[name] for name in names}) for at, means in before.train]
        before.epochs = [(at, {name: means[name] for name in names}) for at, means in before.epochs]
        before.open = [row[order] for row in before.open]
        before.epoch = before.epoch[order]
        before.names = names
        self._last_step = step
        self.past = before

    def latest(self) -> dict[str, float]:
        """Returns the last value of each metric."""
        found = {}
        if self.past.train:
            found = {f"{TRAIN}{name}": mean for name, mean in self.past.train[-1][1].items()}
        if self.evaluations:
            found |= {f"{EVAL}{name}": value for name, value in self.evaluations[-1][1].metrics.items()}
        return found

    def add_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Logs and keeps an evaluation; only the last one keeps its outputs and totals."""
        if self.evaluations:
            at, last = self.evaluations[-1]
            self.evaluations[-1] = (at, replace(last, totals={}, outputs=last.outputs[:0], named_outputs={}))
        self.evaluations.append((step, evaluation))
        self._log_evaluation(step, evaluation)

    def _log_evaluation(self, step: int, evaluation: Evaluation) -> None:
        self._log(step, {f"{EVAL}{name}": value for name, value in evaluation.metrics.items()})

    def add_rate(self, step: int, steps_per_second: float) -> None:
        """Logs and keeps how fast training is; where no step was measured yet there is nothing to tell."""
        rates = self.past.rates
        if steps_per_second > 0 and (not rates or rates[-1][0] < step):
            rates.append((step, steps_per_second * self._batch_size, 1000.0 / steps_per_second))
            self._log_rate(*rates[-1])

    def _log_rate(self, step: int, examples_per_second: float, step_ms: float) -> None:
        found = {"throughput/examples_per_second": examples_per_second, "throughput/step_ms": step_ms}
        if self._tokens:
            found["throughput/tokens_per_second"] = examples_per_second * self._tokens
        self._log(step, found)


def _means(names: Sequence[str], row: Array) -> dict[str, float]:
    """Returns means by name of a row of a weight and sums."""
    return {name: float(total) for name, total in zip(names, row[1:] / (row[0] or np.nan), strict=True)}
