"""Training from a checkpoint to a step, by the loop of the run itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.resume import (
    check_variables,
    load,
)
from runner.checkpoint.saver import Saver
from runner.cluster.lifecycle import AgreedStop
from runner.config.schema import ProfileConfig, RunConfig, TrainerConfig
from runner.config.schema_trainer import EarlyStoppingConfig
from runner.data import workers
from runner.data.base import Array, Dataset
from runner.engine import make_engine
from runner.engine.base import Engine, Pending, PlacedBatches, StepMetrics
from runner.engine.lengths import (
    RunLength,
    without_padding,
)
from runner.host import stages
from runner.host.outputs import quiet_native_log
from runner.host.signals import StopRequest
from runner.task.base import DataSpec, Task
from runner.train import (
    feed,
    loop,
    profile,
)
from runner.train.display import Display
from runner.verify.recorded_step import Recomputed, RecordedStep

# Entries that a sketch converts at a time: 8 MB as float64, however large the array is.
_PIECE = 1 << 20


def recompute(
    config: RunConfig,
    data: Dataset,
    task: Task,
    length: RunLength,
    recorded: RecordedStep,
    folder: Path,
    stop: StopRequest,
) -> Recomputed:
    """Trains from the start of a recorded step to its end, and on to the end of the window of its metrics.

    The loop is that of training, with its evaluations, on which reductions of the learning rate may depend.

    Raises:
      ConfigError: the config has another model or optimizer than the run.
      Interrupted, DataError, EngineError: as in training.
    """
    spec = DataSpec(task.arrays, task)
    # A NaN or Inf loss is a result here and ends nothing, and the step may be after an early stop of the run.
    trainer = replace(config.trainer, on_nan="continue", profile=ProfileConfig(), early_stopping=EarlyStoppingConfig())
    config = replace(config, trainer=trainer)
    with quiet_native_log(folder / "runner.log"):
        engine = make_engine(without_padding(config, data.train.size), spec, length.total)
        engine.build()
        engine.cache_on_device(data.train)
        if recorded.start is not None:
            load(engine, recorded.start)
        elif recorded.saved is not None:
            # Before the steps and not after them, when the result is compared with it.
            check_variables(engine, recorded.saved)
    result = Recomputed()
    with workers.Workers(config.dataset) as readers:
        splits = feed.splits(config, data, task, readers, cached=engine.caches)
        last = _window_end(recorded, config.trainer, length)
        taker = _StateTaker(engine, recorded, last, result, records=config.replay.states)
        profiler = profile.Profiler(config.trainer.profile, engine.trace, folder)
        hooks = loop.LoopHooks(_ignore, _ignore, _ignore, Display(), AgreedStop(stop), taker, profiler)
        if config.replay.states:
            # Two runs may begin with different values.
            taker.record(recorded.first)
        observed = cast("Engine", _ObservedEngine(engine, result))
        title = f"computing steps {recorded.first + 1:,} to {last:,} again"
        with stages.stage(title), stop.deferring(), suppress(_ReachedError):
            # The last step of a run is a period's end, after which the saver is asked and ends the training.
            loop.train(config, observed, splits, hooks, recorded.start)
    epoch, offset = divmod(recorded.step - 1, length.epoch)
    steps = min(length.epoch, length.total - epoch * length.epoch)
    # The plan begins after `offset` steps of the epoch, so its first batch is that of the step.
    plan = feed.epoch_plan(config.dataset, config.trainer, data.train, epoch, steps, offset)
    indices, weight = plan.indices[0], plan.weights[0]
    result.examples = [int(row) for row in indices[weight > 0]]
    return result


def _ignore(*_: object) -> None:
    """Takes what training reports, which the run has recorded already."""


class _ReachedError(Exception):
    """Ends the training at the last step."""


class _StateTaker(Saver):
    """Saves nothing: takes the state after the recorded step, and ends the training after the last step."""

    def __init__(
        self, engine: Engine, recorded: RecordedStep, last: int, result: Recomputed, *, records: bool
    ) -> None:
        super().__init__()
        self._engine = engine
        self._step = recorded.step
        self._last = last
        self._result = result
        self._records = records

    def steps_left(self, step: int) -> int | None:
        """Returns after how many steps a state is taken next; None: no more are, and the feed only reads ahead."""
        if self._records and step < self._step:
            return 1
        return min((stop - step for stop in (self._last, self._step) if stop > step), default=None)

    def save_if_due(self, step: int, recorder: MetricRecorder) -> None:
        """Takes the state if it is due; raises after the last step."""
        result = self._result
        # Device calls are read later than they are started. From here on, `metrics` has all steps up to this one.
        recorder.drain()
        if step == self._step:
            result.variables = self._engine.state()
        if self._records and step <= self._step:
            self.record(step)
        if step >= self._last:
            result.history = recorder.history
            raise _ReachedError

    def record(self, step: int) -> None:
        """Records sketches of the state."""
        state = self._result.variables if step == self._step else self._engine.state()
        self._result.states[step] = {path: sketch(array) for path, array in state.items()}


def sketch(array: Array) -> tuple[float, float]:
    """Returns the L2 norm of an array and the sum of its entries with random signs, which its size determines.

    Two arrays whose sketches agree within a small part of the norm agree as closely, except with a small probability;
    two with the same sketch are equal, but for coincidences.
    """
    values = np.asarray(array).reshape(-1)
    # A sum with random signs shows what a norm does not, such as entries that have changed places. Its square is the
    # squared norm on average. So the sums of two arrays, with the same signs, differ by about the norm of their
    # difference. The size as the seed gives both runs the same signs, whatever their dtypes are.
    draw = np.random.default_rng(values.size)
    squares = 0.0
    signed_sum = 0.0
    for start in range(0, values.size, _PIECE):
        piece = values[start : start + _PIECE].astype(np.float64)
        bits = np.unpackbits(np.frombuffer(draw.bytes(-(-piece.size // 8)), np.uint8), count=piece.size)
        squares += float(piece @ piece)
        signed_sum += float(piece @ np.where(bits, 1.0, -1.0))
    return float(np.sqrt(squares)), signed_sum


def _window_end(recorded: RecordedStep, config: TrainerConfig, length: RunLength) -> int:
    """Returns the step at which the run has logged the mean of metrics that has the step in it."""
    window = config.log_every_steps
    end = -(-recorded.step // window) * window
    # The record ends with the last checkpoint: a window that was logged later has nothing to be compared with.
    if end <= min(recorded.last, length.total):
        return end
    return recorded.step


@dataclass(frozen=True)
class _ObservedEngine:
    """An engine that keeps the metrics of each step; everything else is the engine's own."""

    engine: Engine
    result: Recomputed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> Pending:
        """Runs the steps."""
        pending = self.engine.train_steps(batches, first_step, rate_factor)
        return _ObservedPending(pending, first_step, self.result)


@dataclass(frozen=True)
class _ObservedPending:
    pending: Pending
    first_step: int
    result: Recomputed

    def read(self) -> StepMetrics:
        """Waits for the call, and keeps the means of its steps."""
        metrics = self.pending.read()
        for offset, weight in enumerate(metrics.weight):
            means: dict[str, float] = {}
            for name, sums in metrics.sums.items():
                # A step whose examples all have weight 0 has no mean: NaN, and no error.
                means[name] = float(sums[offset] / (weight or np.nan))
            self.result.metrics[self.first_step + offset + 1] = means
        return metrics
