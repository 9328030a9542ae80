"""When a run saves, and the thread that writes its checkpoints."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from runner.checkpoint import storage
from runner.checkpoint.files import DamagedError
from runner.checkpoint.metric_history import to_json
from runner.checkpoint.places import Place
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.stopping import Objective
from runner.checkpoint.storage import BestRecord, Content
from runner.cluster.team import ALONE, ProcessError, Team
from runner.config.schema import CheckpointConfig
from runner.engine.base import Shard
from runner.engine.common import Engine
from runner.errors import Interrupted

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Bytes of a process's state. A smaller state is copied and written while training continues; a larger one is written
# directly from the devices while training waits. The copy would need as much host memory again, and up to two copies
# exist at a time.
MOST_COPIED = 1 << 30

# One state may wait while another is written. A third save waits, so that memory stays bounded.
_MOST_WRITES = 2

# (step, metrics) -> the content of a checkpoint.
Take = Callable[[int, MetricRecorder], Content]


class Saver:
    """Saves every so many steps or minutes, at the best evaluation, and when the loop asks for it.

    Without a folder (`trainer.checkpoint.enabled=false`) it saves nothing. `failures` tells by step why a state could
    not be saved.

    A write that fails is reported, and training continues: what is on the disk stays, and the last state is tried
    again at the end. Only what was written counts as saved, or as the best.

    Process 0 alone reads and changes the folder; the others learn the results. So all processes call every method, in
    the same order. The thread that calls these methods owns every field but `_steps`, the checkpoints in the folder,
    and `_kept`, the step of the best of them: these belong to the writer thread until `_settle` has waited for all of
    its writes.
    """

    def __init__(
        self,
        config: CheckpointConfig | None = None,
        folder: Place | None = None,
        take: Take | None = None,
        warn: Callable[[str], object] = str,
        start: int = 0,
        goal: Objective | None = None,
        team: Team = ALONE,
    ) -> None:
        """Lists the folder, and removes its checkpoints of later steps than `start`: they are trained again.

        The checkpoint of the step `start` is there already. Without a `goal` no best checkpoint is kept.
        """
        self.failures: dict[int, str] = {}
        self._config = config or CheckpointConfig()
        self._is_on = folder is not None
        self._folder = folder or Path()
        self._take = take
        self._warn = warn
        self._goal = goal
        self._team = team
        # Numbers the keys of broadcasts, of which the writer thread makes some.
        self._broadcasts = itertools.count()
        self._clocks = itertools.count()

        def listed() -> list[Any]:
            # First: an earlier process may have left files of an unfinished checkpoint.
            storage.clean(self._folder)
            steps: list[int] = []
            for step in storage.steps(self._folder):
                if step > start:
                    storage.remove(self._folder, step)
                # A folder that only has the name of a checkpoint must not count among the `keep` newest.
                elif storage.is_checkpoint(storage.place(self._folder, step)):
                    steps.append(step)
            best = storage.read_best(self._folder)
            if best is None:
                return [steps]
            return [steps, best.metric, best.value, best.step]

        self._steps: set[int] = set()
        self._best: BestRecord | None = None
        self._kept: int | None = None
        if self._is_on:
            steps, *best = self._on_first(listed)
            self._steps.update(steps)
            if best:
                self._best = BestRecord(*best)
                self._kept = self._best.step
        # Step and time of the last state that was handed to the writer, or that the run began with. A branch that has
        # nothing to train saves the state that it began with.
        self._saved_step = -1 if start and start not in self._steps else start
        self._saved_at = time.monotonic()
        self._writes: deque[tuple[int, BestRecord | None, Future[str | None]]] = deque()
        self._writer = ThreadPoolExecutor(1, "checkpoint-writer")

    def _on_first(self, make: Callable[[], T]) -> T:
        """Calls a function in process 0 and returns its result in all processes."""
        return self._team.broadcast(f"kept {self._folder} {next(self._broadcasts)}", make)

    def steps_left(self, step: int) -> int | None:
        """Returns the number of steps until a device call must end for a save; None: no limit."""
        every = self._config.every_steps
        if every is None or not self._is_on:
            return None
        return every - step % every

    def save_if_due(self, step: int, recorder: MetricRecorder) -> None:
        """Saves at multiples of `every_steps`, and when the last save is `every_minutes` old."""
        every = self._config.every_steps
        is_due = every is not None and step % every == 0
        minutes = self._config.every_minutes
        if minutes is not None and self._is_on:
            # Clocks differ between processes, but all must save the same step: process 0's clock decides.
            is_late = self._team.broadcast(
                f"late {self._folder} {next(self._clocks)}",
                lambda: time.monotonic() - self._saved_at >= 60.0 * minutes,
            )
            is_due = is_due or is_late
        if is_due:
            self.save(step, recorder)

    def save(self, step: int, recorder: MetricRecorder) -> None:
        """Copies the state and hands it to the writer thread; does nothing if this step is saved already."""
        if step != self._saved_step and self._is_on:
            self._put(step, recorder, None)

    def save_last(self, step: int, recorder: MetricRecorder) -> str | None:
        """Saves the state that a run ends with, and waits for it; returns why that failed twice, or None."""
        self.save(step, recorder)
        self._settle()
        if step in self.failures:
            self._put(step, recorder, self._best_now(step, recorder))
            self._settle()
        if step not in self.failures:
            return None
        then = "start the run again"
        if self._steps:
            then = f"continue from step {max(self._steps):,} with resume={self._folder}"
        return (
            f"the state of step {step:,} could not be saved ({self.failures[step]}); free space in "
            f"{self._folder} or make it writable, then {then}"
        )

    def evaluated(self, step: int, recorder: MetricRecorder) -> None:
        """Saves if the last evaluation is the best so far, by `trainer.checkpoint.best`."""
        if self._best_now(step, recorder) is None:
            return
        # A better one may still be being written.
        self._settle()
        best = self._best_now(step, recorder)
        if best is not None:
            self._put(step, recorder, best)

    def _best_now(self, step: int, recorder: MetricRecorder) -> BestRecord | None:
        """Returns what makes the state of a step the best, by the last evaluation; None if that is worse, or a NaN."""
        measured = recorder.history.measured()
        if self._goal is None or not self._is_on or not measured or measured[-1][0] != step:
            return None
        value = self._goal.value(measured[-1][1])
        if self._best is None or self._best.metric != self._goal.metric:
            is_better = not math.isnan(value)
        else:
            is_better = self._goal.improves(value, self._best.value)
        return BestRecord(self._goal.metric, value, step) if is_better else None

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint so far, verified by process 0; None if there is none; raises DamagedError."""
        self._settle()
        if self._best is None:
            return None
        place = storage.place(self._folder, self._best.step)

        def damage() -> str:
            try:
                Checkpoint(place)
            except DamagedError as error:
                return str(error)
            return ""

        reason = self._on_first(damage)
        if reason:
            raise DamagedError(reason)
        return Checkpoint(place, trusted=True)

    def close(self) -> None:
        """Waits until everything is on the disk, and ends the writer thread."""
        self._writer.shutdown()

    def _put(self, step: int, recorder: MetricRecorder, best: BestRecord | None) -> None:
        """Copies the state and hands it to the writer thread, as the best one if `best` is its record as such."""
        self._settle(leave=_MOST_WRITES - 1)
        assert self._take is not None
        content = self._take(step, recorder)
        if best is not None:
            content = replace(content, about={**content.about, "best": {best.metric: best.value}})
        self._writes.append((step, best, self._writer.submit(self._write, content, is_best=best is not None)))
        self._saved_step = step
        self._saved_at = time.monotonic()
        if content.passing:
            # The arrays are the devices' own, and the next step may overwrite them or reuse their memory.
            self._settle()

    def _settle(self, leave: int = 0) -> None:
        """Waits for all writes but the last few, and applies their outcomes in the order of the writes."""
        while len(self._writes) > leave:
            step, best, outcome = self._writes.popleft()
            reason = outcome.result()
            if reason is not None:
                self.failures[step] = reason
                continue
            self.failures.pop(step, None)
            if best is not None:
                self._best = best

    def _write(self, content: Content, *, is_best: bool) -> str | None:
        """Writes a state and removes old checkpoints, in the writer thread; returns why it could not be written."""
        try:
            storage.write(self._folder, content, self._team)
            self._steps.add(content.step)
            if is_best:
                self._kept = content.step
        except BaseException as error:
            logger.exception("checkpoint of step %d", content.step)
            # The run ends because of another process or a signal, and reports that itself. All processes fail alike,
            # and process 0 says it for all.
            if self._team.is_first and not isinstance(error, ProcessError | Interrupted):
                self._warn(f"could not write the checkpoint of step {content.step}: {error}; training continues")
            return str(error)
        try:
            # Only now: until the new checkpoint is on the disk, the old ones are what a resumed run has.
            self._steps -= set(self._on_first(self._remove_old))
        except BaseException:
            logger.exception("removal of checkpoints before step %d", content.step)
        return None

    def _remove_old(self) -> list[int]:
        """Removes all checkpoints but the best and the `keep` newest, in process 0.

        What can't be removed is not tried again with each save: it is no longer counted either.
        """
        removed = [step for step in sorted(self._steps)[: -self._config.keep] if step != self._kept]
        for step in removed:
            place = storage.place(self._folder, step)
            try:
                if not storage.remove(self._folder, step):
                    self._warn(f"{place} is not removed: it is damaged")
            except OSError as error:
                self._warn(f"could not remove {place}: {error}")
        return removed


def take_state(engine: Engine, about: Mapping[str, object]) -> Take:
    """Returns a function that copies an engine's state and the metrics into the content of a checkpoint.

    `about` is what every checkpoint of the run records: run, config, seed, versions and data.
    """

    def take(step: int, recorder: MetricRecorder) -> Content:
        # The metrics of calls that still run are read first: a checkpoint holds the metrics up to its own step.
        recorder.drain()
        shards = engine.shards()
        # NumPy arrays are copies already and need no other.
        size = 0
        for shard in itertools.chain.from_iterable(shards.values()):
            if not isinstance(shard.array, np.ndarray):
                size += shard.array.nbytes
        passing = size > MOST_COPIED
        if not passing:
            shards = {path: list(map(_copied, pieces)) for path, pieces in shards.items()}
        return Content(step, shards, to_json(recorder.history), about, passing=passing)

    return take


def _copied(shard: Shard) -> Shard:
    """Returns a shard whose array no step changes."""
    if isinstance(shard.array, np.ndarray):
        return shard
    return replace(shard, array=np.array(shard.array))
