"""From the engine's per-step metrics to logged points: windows of steps, epoch means, throughput."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from runner.config.errors import NotFiniteError
from runner.engine.base import Array, EvalMetrics, Pending

LogPoints = Callable[[int, Mapping[str, float]], None]
_CALLS_IN_FLIGHT = 1  # a call's metrics are read when the next one has been started
_CALLS_A_RATE = 5
_WARM_UP_CALLS = 3  # compilation, and calls sized before their time was known


@dataclass
class Meter:
    """Time and steps of device calls, warm-up excluded.

    Attributes:
      steps: steps measured.
      seconds: wall time of those steps, evaluation excluded.
      cpu_seconds: processor time of the whole process in them.
    """

    steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    recent: float = 0.0
    _calls: int = 0
    # A call may return before its devices are done; its time then shows in the next, so several are taken together.
    _latest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_CALLS_A_RATE))
    _wall: float = field(default_factory=time.perf_counter)
    _cpu: float = field(default_factory=time.process_time)

    def restart(self) -> None:
        """Starts the clock again after something that is not training."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def call_done(self, steps: int) -> float:
        """Counts a call that has just returned; returns the seconds a step of the latest calls."""
        wall, cpu = time.perf_counter(), time.process_time()
        seconds = wall - self._wall
        self._calls += 1
        if self._calls > _WARM_UP_CALLS:
            self.steps += steps
            self.seconds += seconds
            self.cpu_seconds += cpu - self._cpu
        if self._calls > 1:  # the first one compiled
            self._note(steps, seconds)
        else:
            self.recent = steps / seconds if seconds > 0 else 0.0
        self._wall, self._cpu = wall, cpu
        return 1.0 / self.recent if self.recent else 0.0

    def _note(self, steps: int, seconds: float) -> None:
        self._latest.append((steps, seconds))
        done, taken = (sum(column) for column in zip(*self._latest, strict=True))
        self.recent = done / taken if taken > 0 else 0.0

    def waited(self) -> None:
        """Counts the time since the last call as its own: a call returns before its devices are done."""
        wall, cpu = time.perf_counter(), time.process_time()
        if self._calls > _WARM_UP_CALLS:
            self.seconds += wall - self._wall
            self.cpu_seconds += cpu - self._cpu
        if self._latest:
            self._note(0, wall - self._wall)
        self._wall, self._cpu = wall, cpu

    @property
    def steps_per_second(self) -> float:
        """Mean over all measured steps; the last call's where none was measured yet."""
        return self.steps / self.seconds if self.seconds else self.recent


@dataclass(frozen=True)
class Restore:
    """A return to a checkpoint.

    Attributes:
      bad: step of the loss that was not finite.
      step: of the checkpoint.
      factor: what the learning rate is multiplied by from there on.
    """

    bad: int
    step: int
    factor: float


class History:
    """Reads metrics back late, logs the mean of every `window` steps, and keeps what the plots need.

    Attributes:
      train: (step, loss, accuracy) of every logged window.
      evaluations: (step, metrics) of every evaluation.
      rates: (step, examples a second, milliseconds a step) of every time that these were logged.
      restores: returns to a checkpoint after a loss that was not finite; what was logged after the checkpoint is
        logged again, and `train` and `evaluations` hold the later of the two.
    """

    def __init__(
        self, log: LogPoints, window: int, learning_rate: Callable[[int], float], *, on_nan: str = "stop"
    ) -> None:
        self._log, self._window, self._learning_rate, self._on_nan = log, window, learning_rate, on_nan
        self._watches = on_nan != "continue"
        self.restores: list[Restore] = []
        self._pending: deque[tuple[int, Pending]] = deque()
        self._open: list[tuple[float, float]] = []
        self.train: list[tuple[int, float, float]] = []
        self.evaluations: list[tuple[int, EvalMetrics]] = []
        self.rates: list[tuple[int, float, float]] = []
        self._epoch_steps = self._last_step = 0
        self._epoch_sums = np.zeros(2)

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
        if self._open:
            self._close_window(self._last_step)

    def _read(self) -> None:
        first, pending = self._pending.popleft()
        metrics = pending.read()
        bad = np.flatnonzero(~np.isfinite(metrics.loss)) if self._watches else np.zeros(0, np.int64)
        good = int(bad[0]) if len(bad) and self._on_nan == "restore" else len(metrics.loss)  # the rest is done again
        loss, accuracy = metrics.loss[:good], metrics.accuracy[:good]
        self._epoch_sums += (loss.sum(), accuracy.sum())
        self._epoch_steps += good
        for offset in range(good):
            self._last_step = first + offset + 1
            self._open.append((float(loss[offset]), float(accuracy[offset])))
            if self._last_step % self._window == 0:
                self._close_window(self._last_step)
        if len(bad):
            self._watches = False  # the first is the one to name; what is still in flight is only logged
            raise NotFiniteError(first + int(bad[0]) + 1, float(metrics.loss[bad[0]]), self._on_nan)

    def _close_window(self, step: int) -> None:
        loss, accuracy = np.mean(self._open, axis=0).tolist()
        self._open.clear()
        self.train.append((step, loss, accuracy))
        self._log_window(step, loss, accuracy)

    def _log_window(self, step: int, loss: float, accuracy: float) -> None:
        rate = self._learning_rate(step - 1) * self.rate_factor(step - 1)
        self._log(step, {"train/loss": loss, "train/accuracy": accuracy, "learning_rate": rate})

    def rate_factor(self, step: int) -> float:
        """Returns what the learning rate is multiplied by after so many steps: 1 unless a checkpoint was restored."""
        factors = [restore.factor for restore in self.restores if restore.step <= step]
        return factors[-1] if factors else 1.0

    def epoch_means(self) -> tuple[float, float]:
        """Returns mean loss and accuracy of the epoch's steps that were read so far; NaN where none was."""
        loss, accuracy = self._epoch_sums / (self._epoch_steps or np.nan)
        return float(loss), float(accuracy)

    def start_epoch(self) -> None:
        """Begins the means of a new epoch."""
        self._epoch_steps, self._epoch_sums = 0, np.zeros(2)

    def arrays(self) -> dict[str, Array]:
        """Returns everything that `restore` needs; what is still in flight must have been drained."""
        rows = [(step, one.loss, one.accuracy, one.examples) for step, one in self.evaluations]
        return {
            "train": np.array(self.train, np.float64).reshape(-1, 3),
            "open": np.array(self._open, np.float64).reshape(-1, 2),
            "epoch": np.array([self._epoch_steps, *self._epoch_sums], np.float64),
            "evaluations": np.array(rows, np.float64).reshape(-1, 4),
            "confusion": self.evaluations[-1][1].confusion if self.evaluations else np.zeros((0, 0), np.int64),
            "rates": np.array(self.rates, np.float64).reshape(-1, 3),
            "restores": np.array([(r.bad, r.step, r.factor) for r in self.restores], np.float64).reshape(-1, 3),
        }

    def restore(self, step: int, arrays: Mapping[str, Array]) -> None:
        """Goes on from what `arrays` returned after `step` steps, and logs it all again: the log drops what it has.

        Only the last evaluation's confusion matrix was kept; those before it have an empty one.
        """
        self._take(step, arrays)
        self.restores = restores_of(arrays)
        for point in self.train:
            self._log_window(*point)
        for at, metrics in self.evaluations:
            self._log_evaluation(at, metrics)
        for rate in self.rates:
            self._log_rate(*rate)

    def wait(self) -> None:
        """Waits for every call that is still out, and takes no notice of its metrics."""
        for _, pending in self._pending:
            pending.read()

    def go_back(self, restore: Restore, arrays: Mapping[str, Array]) -> None:
        """Goes on from a checkpoint of this run, forgetting what came after it.

        Args:
          restore: which checkpoint, and why.
          arrays: what `arrays` returned there.
        """
        self._pending.clear()
        self._take(restore.step, arrays)
        self.restores.append(restore)
        self._watches = True

    def _take(self, step: int, arrays: Mapping[str, Array]) -> None:
        self._last_step = step
        self.train = [(int(at), float(loss), float(accuracy)) for at, loss, accuracy in arrays["train"]]
        self._open = [(float(loss), float(accuracy)) for loss, accuracy in arrays["open"]]
        self._epoch_steps, self._epoch_sums = int(arrays["epoch"][0]), np.array(arrays["epoch"][1:])
        self.evaluations = evaluations_of(arrays)
        self.rates = [(int(at), float(rate), float(ms)) for at, rate, ms in arrays.get("rates", ())]

    def latest(self) -> dict[str, float]:
        """Returns the last value of each metric."""
        found = {}
        if self.train:
            found = {"train/loss": self.train[-1][1], "train/accuracy": self.train[-1][2]}
        if self.evaluations:
            metrics = self.evaluations[-1][1]
            found |= {"eval/loss": metrics.loss, "eval/accuracy": metrics.accuracy}
        return found

    def add_evaluation(self, step: int, metrics: EvalMetrics) -> None:
        """Logs and keeps an evaluation; only the last one keeps its logits."""
        if self.evaluations:
            at, last = self.evaluations[-1]
            self.evaluations[-1] = (at, replace(last, logits=np.zeros((0, 0), np.float32)))
        self.evaluations.append((step, metrics))
        self._log_evaluation(step, metrics)

    def _log_evaluation(self, step: int, metrics: EvalMetrics) -> None:
        self._log(step, {"eval/loss": metrics.loss, "eval/accuracy": metrics.accuracy})

    def add_rate(self, step: int, steps_per_second: float, batch_size: int) -> None:
        """Logs and keeps how fast training is; where no step was measured yet there is nothing to tell."""
        if steps_per_second > 0 and (not self.rates or self.rates[-1][0] < step):
            self.rates.append((step, steps_per_second * batch_size, 1000.0 / steps_per_second))
            self._log_rate(*self.rates[-1])

    def _log_rate(self, step: int, examples_per_second: float, step_ms: float) -> None:
        self._log(step, {"throughput/examples_per_second": examples_per_second, "throughput/step_ms": step_ms})


def evaluations_of(arrays: Mapping[str, Array]) -> list[tuple[int, EvalMetrics]]:
    """Returns the evaluations in what `History.arrays` returned; all but the last have an empty confusion matrix."""
    empty, last = np.zeros((0, 0), np.int64), len(arrays["evaluations"]) - 1
    return [
        (int(at), EvalMetrics(float(loss), float(accuracy), int(count), arrays["confusion"] if i == last else empty))
        for i, (at, loss, accuracy, count) in enumerate(arrays["evaluations"])
    ]


def restores_of(arrays: Mapping[str, Array]) -> list[Restore]:
    """Returns the returns to a checkpoint in what `History.arrays` returned."""
    return [Restore(int(bad), int(step), float(factor)) for bad, step, factor in arrays.get("restores", ())]


# What `History.arrays` returns: dims, and columns where there are two; and what earlier versions did not keep.
_ARRAYS = {"train": (2, 3), "open": (2, 2), "epoch": (1, 3), "evaluations": (2, 4), "confusion": (2, None)}
_LATER_ARRAYS = {"restores": (2, 3), "rates": (2, 3)}


def check_arrays(step: int, arrays: Mapping[str, Array]) -> None:
    """Checks that arrays are what `History.arrays` returned after so many steps.

    Args:
      step: training steps done.
      arrays: as they were read.

    Raises:
      ValueError: names the one that is not.
    """
    wanted = _ARRAYS | {name: form for name, form in _LATER_ARRAYS.items() if name in arrays}
    if set(arrays) != set(wanted):
        raise ValueError(f"its history must hold {', '.join(wanted)}")
    for name, (rank, columns) in wanted.items():
        array, dtype = arrays[name], np.int64 if name == "confusion" else np.float64
        if array.ndim != rank or array.dtype != dtype or columns not in (None, array.shape[-1]):
            raise ValueError(f"{name} of its history has another form")
    counts = [arrays["epoch"][0], *arrays.get("restores", np.zeros((0, 3)))[:, :2].flat]
    if not all(np.isfinite(count) and count >= 0 for count in counts):
        raise ValueError("its history must count in whole numbers")
    for name in ("train", "evaluations", "rates"):
        at = arrays.get(name, np.zeros((0, 3)))[:, 0]
        if not bool(np.all((at > 0) & (at <= step) & (at == np.floor(at))) and np.all(np.diff(at) > 0)):
            raise ValueError(f"{name} of its history must have steps up to {step}, in order")
