"""When a run saves, and the thread that writes its checkpoints."""

from __future__ import annotations

import errno
import itertools
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runner.checkpoint import index as checkpoint_index
from runner.checkpoint import storage
from runner.checkpoint.files import DamagedError
from runner.checkpoint.index import (
    BestRecord,
    CheckpointIndex,
)
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.stopping import Objective
from runner.checkpoint.stopping import best as best_evaluation
from runner.checkpoint.storage import Content
from runner.cluster.team import (
    ALONE,
    ProcessError,
    Team,
)
from runner.config.schema import CheckpointConfig
from runner.engine.base import Engine, Shard
from runner.errors import Interrupted
from runner.host import work
from runner.host.stores import cache
from runner.host.stores.urls import ObjectPath, Place

logger = logging.getLogger(__name__)

# Bytes of a process's state. A smaller state is copied and written while training continues; a larger one is written
# directly from the devices while training waits. The copy would need as much host memory again, and up to two copies
# exist at a time.
MOST_COPIED = 1 << 30

# (step, metrics) -> the content of a checkpoint.
Take = Callable[[int, MetricRecorder], Content]


class Saver:
    """Saves the state of a run; the loop asks it after every device call.

    This one saves nothing (`trainer.checkpoint.enabled=false`).
    """

    @property
    def folder(self) -> Place | None:
        """The run's checkpoints; None: nothing is saved."""
        return None

    def begin(self, step: int, recorder: MetricRecorder) -> None:
        """Saves the state that a run begins with, unless it has that checkpoint."""

    def steps_left(self, step: int) -> int | None:  # noqa: ARG002
        """Returns the number of steps until a device call must end for a save; None: no limit."""
        return None

    def save_if_due(self, step: int, recorder: MetricRecorder) -> None:
        """Saves if the number of steps or the time since the last save requires it."""

    def save_last(self, step: int, recorder: MetricRecorder) -> str | None:  # noqa: ARG002
        """Saves the state that a run ends with and waits for it; returns why that failed, None if it did not."""
        return None

    def save(self, step: int, recorder: MetricRecorder) -> None:
        """Saves now."""

    def evaluated(self, step: int, recorder: MetricRecorder) -> None:
        """Saves if the last evaluation is the best so far."""

    def go_back(self, below: int) -> Checkpoint | None:  # noqa: ARG002
        """Returns the last checkpoint of fewer than `below` steps, removing later ones; None: there is none."""
        return None

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint so far; None: there is none."""
        return None

    def best_unsaved(self) -> str | None:
        """Returns why the best evaluation so far has no checkpoint; None: it has one."""
        return None

    def close(self) -> None:
        """Waits until everything is on the disk."""


@dataclass(frozen=True)
class Failure:
    """A checkpoint that could not be written.

    Attributes:
      step: its step.
      reason: the error, in words. The error itself would keep the state in memory through its traceback.
      disk_is_full: whether the disk or a quota is full.
      best: the record that it would have had as the best checkpoint.
    """

    step: int
    reason: str
    disk_is_full: bool
    best: BestRecord | None


@dataclass(frozen=True)
class _Write:
    """A checkpoint that was handed to the writer thread.

    Attributes:
      step: its step.
      best: the record that it gets as the best checkpoint; None: it is not the best.
      outcome: None when it is on the disk, or why it is not. Set when the writer no longer needs the state.
    """

    step: int
    best: BestRecord | None
    outcome: Future[Failure | None]


class CheckpointSaver(Saver):
    """Saves every so many steps or minutes, at the best evaluation, and when the loop asks for it.

    The state is copied from the devices between two device calls, and the copy is written while training continues. A
    state that is too large to be copied is written directly from the devices, while training waits.

    A write that fails is reported and logged, and training continues: what is on the disk stays, and the last state is
    tried again at the end. Only what was written counts as saved, or as the best.

    **Invariant.** The thread that calls these methods owns every field of this class. The writer thread gets a state
    and a `_Write` from the queue, and answers through the future of that `_Write`, which is all that changes hands
    while both run. `_index` belongs to the writer as long as `_writes` has an entry without an outcome: methods that
    read it call `_wait` first, except `begin`, which precedes every write.
    `_settle` applies the outcomes in the order of the writes. So, of the writes whose outcomes were applied,

    - `_saved_best` is the record of the last best checkpoint that was written,
    - `_failed` is the last failure that no later or equal step has made up for,
    - `_failed_best` is the last failure of a best checkpoint that no better or equal one has replaced,

    and `_pending_best` is the record of the best one of those that were written or are still being written.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        folder: Place,
        take: Take,
        warn: Callable[[str], None],
        start: int = 0,
        goal: Objective | None = None,
        team: Team = ALONE,
    ) -> None:
        """Starts the writer thread.

        Args:
          config: when to save, and how many checkpoints to keep.
          folder: the run's checkpoints.
          take: copies the state of the run.
          warn: prints one line.
          start: step that the run begins with, which is not saved again.
          goal: the metric that the best checkpoint is the best by; None: no best checkpoint is kept.
          team: the processes of the run, each of which has its own saver.
        """
        self._goal = goal
        self._team = team
        self._broadcasts = itertools.count()
        self._config = config
        self._folder = folder
        self._take = take
        self._warn = warn
        # Before the index lists the folder: an earlier process may have left files of an unfinished checkpoint.
        if team.is_first:
            storage.clean(folder)
        self._index = CheckpointIndex(folder, start, team)
        self._writes: deque[_Write] = deque()
        self._failed: Failure | None = None
        self._failed_best: Failure | None = None
        self._saved_best = self._index.best()
        self._pending_best = self._saved_best
        # Step and time of the last state that was handed to the writer, or that the run began with.
        self._saved_step = start
        self._saved_at = time.monotonic()
        # One state may wait while another is written. A third save blocks, so that memory stays bounded.
        self._queue: queue.Queue[tuple[Content, _Write] | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run_writer, name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Place:
        """The run's checkpoints."""
        return self._folder

    def begin(self, step: int, recorder: MetricRecorder) -> None:
        """Saves the state that a run begins with, unless it has that checkpoint, as a resumed run has."""
        self._recover_best(recorder)
        if step not in self._index.steps:
            # No step is saved yet, so that `save` does not skip this one.
            self._saved_step = -1
            self.save(step, recorder)

    def _recover_best(self, recorder: MetricRecorder) -> None:
        """Records the best checkpoint of a process that died after it was written and before it was recorded."""
        goal = self._goal
        if goal is None:
            return
        best = best_evaluation(goal, recorder.measured())
        if best is None:
            return
        step, value = best
        if step not in self._index.steps:
            return
        if not _improves(goal, value, self._saved_best):
            return
        record: BestRecord = {"metric": goal.metric, "value": value, "step": step}
        self._saved_best = record
        self._pending_best = record
        try:
            if self._team.is_first:
                checkpoint_index.write_best(self._folder, record)
        except OSError as error:
            self._warn(f"could not record step {step} as the best checkpoint: {error}; training continues")

    def steps_left(self, step: int) -> int | None:
        """Returns the steps until the next multiple of `every_steps`."""
        every = self._config.every_steps
        if every is None:
            return None
        return every - step % every

    def save_if_due(self, step: int, recorder: MetricRecorder) -> None:
        """Saves at multiples of `every_steps`, and when the last save is `every_minutes` old."""
        every = self._config.every_steps
        is_due = every is not None and step % every == 0
        minutes = self._config.every_minutes
        if minutes is not None:
            # Clocks differ between processes, but all must save the same step: process 0's clock decides.
            is_late = self._team.broadcast(
                f"late {self._folder} {next(self._broadcasts)}",
                lambda: time.monotonic() - self._saved_at >= 60.0 * minutes,
            )
            is_due = is_due or is_late
        if is_due:
            self.save(step, recorder)

    def save(self, step: int, recorder: MetricRecorder) -> None:
        """Copies the state and hands it to the writer thread; does nothing if this step is saved already."""
        self._put(step, recorder, None)

    def save_last(self, step: int, recorder: MetricRecorder) -> str | None:
        """Saves the state that a run ends with, and waits for it.

        If that fails, it is tried once more. If the disk of the checkpoints is full, those before the last intact one
        are removed first: they would be removed in any case as soon as this one is written.

        Returns:
          Why the state could not be saved, and what to do; None: it is saved.
        """
        self.save(step, recorder)
        self._wait()
        if self._failed is not None:
            # In a store, a full disk is the local one that files wait on for their upload.
            if self._failed.disk_is_full and not isinstance(self._folder, ObjectPath):
                self._make_room()
            self.save(step, recorder)
            self._wait()
        if self._failed is None:
            return None
        newest = max(self._index.steps, default=None)
        if newest is None:
            then = "start the run again"
        else:
            then = f"continue from step {newest:,} with resume={self._folder.as_posix()}"
        fix = f"free space in {self._folder} or make it writable"
        if isinstance(self._folder, ObjectPath):
            fix = f"make {self._folder} writable"
            if self._failed.disk_is_full:
                fix = f"free space in {cache.folder()}, where files wait for their upload"
        return f"the state of step {step:,} could not be saved ({self._failed.reason}); {fix}, then {then}"

    def _make_room(self) -> None:
        removed = self._index.make_room()
        if removed:
            steps = ", ".join(map(str, removed))
            self._warn(f"removed the checkpoints of steps {steps} to make room for the last state")

    def evaluated(self, step: int, recorder: MetricRecorder) -> None:
        """Saves if the last evaluation is the best so far, by `trainer.checkpoint.best`."""
        goal = self._goal
        if goal is None:
            return
        _, metrics = recorder.measured()[-1]
        value = goal.value(metrics)
        self._settle()
        # A better evaluation is still being written. If that fails, this one may be the best after all.
        if self._pending_best is not self._saved_best and _improves(goal, value, self._saved_best):
            self._wait()
        if _improves(goal, value, self._pending_best):
            self._pending_best = {"metric": goal.metric, "value": value, "step": step}
            self._put(step, recorder, self._pending_best)

    def go_back(self, below: int) -> Checkpoint | None:
        """Returns the last intact checkpoint of fewer than `below` steps, removing later ones.

        They lead to a NaN or Inf loss: if this process dies now, `resume` must not continue from them. The next save
        writes whatever its step is, because the run continues differently from here.
        """
        self._wait()
        self._saved_step = -1
        self._failed = None
        self._failed_best = None
        checkpoint = None
        for step in sorted(self._index.steps, reverse=True):
            if step >= below:
                self._index.give_up(step)
                continue
            try:
                checkpoint = self._index.opened(step)
                break
            except DamagedError as error:
                self._warn(f"{error}; using the previous checkpoint")
                self._index.give_up(step)
        self._saved_best = self._index.best()
        self._pending_best = self._saved_best
        return checkpoint

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint so far.

        Raises:
          DamagedError: the checkpoint is damaged.
        """
        self._wait()
        if self._saved_best is None:
            return None
        return self._index.opened(self._saved_best["step"])

    def best_unsaved(self) -> str | None:
        """Returns why the best evaluation so far has no checkpoint; None: it has one, as far as is known."""
        self._wait()
        if self._failed_best is None:
            return None
        return f"the state of step {self._failed_best.step:,} could not be saved ({self._failed_best.reason})"

    def close(self) -> None:
        """Waits until everything is on the disk, and ends the writer thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _put(self, step: int, recorder: MetricRecorder, best: BestRecord | None) -> None:
        """Copies the state and hands it to the writer thread; see `_take_and_write`."""
        with work.clock().doing(work.SAVE):
            self._take_and_write(step, recorder, best)

    def _take_and_write(self, step: int, recorder: MetricRecorder, best: BestRecord | None) -> None:
        """Copies the state and hands it to the writer thread.

        Args:
          step: training steps done.
          recorder: the metrics so far.
          best: the record of this checkpoint if its evaluation is the best so far.
        """
        if self._team.count > 1 and step == self._saved_step:
            # Whether that write has failed decides below. All processes must decide alike, so all wait for it.
            self._wait()
        self._settle()
        has_failed = self._failed is not None and self._failed.step == step
        if step == self._saved_step and best is None and not has_failed:
            return
        if best is None:
            best = self._earlier_best(step)
        content = self._take(step, recorder)
        write = _Write(step, best, Future())
        self._writes.append(write)
        self._queue.put((content, write))
        if content.passing:
            # The arrays are the devices' own, and the next step may overwrite them or reuse their memory.
            taken = content.taken
            del content
            taken.wait()
        self._saved_step = step
        self._saved_at = time.monotonic()

    def _earlier_best(self, step: int) -> BestRecord | None:
        """Returns the record that a checkpoint had, or would have had, as the best; rewritten, it gets it again."""
        if self._failed is not None and self._failed.step == step and self._failed.best is not None:
            return self._failed.best
        if self._saved_best is not None and self._saved_best["step"] == step:
            return self._saved_best
        return None

    def _wait(self) -> None:
        """Waits for every write, and applies the outcomes."""
        with work.clock().doing(work.SAVE):
            for write in self._writes:
                write.outcome.result()
        self._settle()

    def _settle(self) -> None:
        """Applies the outcomes that are known, in the order of the writes; does not wait."""
        while self._writes and self._writes[0].outcome.done():
            write = self._writes.popleft()
            failure = write.outcome.result()
            if failure is None:
                self._note_saved(write)
            else:
                self._note_failed(write, failure)

    def _note_saved(self, write: _Write) -> None:
        if self._failed is not None and self._failed.step <= write.step:
            self._failed = None
        if write.best is None:
            return
        self._saved_best = write.best
        if self._failed_best is None or self._failed_best.best is None or self._goal is None:
            self._failed_best = None
        elif not _improves(self._goal, self._failed_best.best["value"], write.best):
            # This checkpoint is at least as good as the one that was lost.
            self._failed_best = None

    def _note_failed(self, write: _Write, failure: Failure) -> None:
        self._failed = failure
        if write.best is None:
            return
        self._failed_best = failure
        # An evaluation after this one may be pending already, and then stays so.
        if self._pending_best is write.best:
            self._pending_best = self._saved_best

    def _run_writer(self) -> None:
        """Writes states until there are no more; runs in the writer thread."""
        while self._write_next():
            pass

    def _write_next(self) -> bool:
        """Waits for a state and writes it; returns whether there may be another."""
        item = self._queue.get()
        if item is None:
            return False
        content, write = item
        failure = self._written(content, write.best)
        # The state's memory is released before training, which may wait for the outcome, continues.
        taken = content.taken
        del item, content
        write.outcome.set_result(failure)
        taken.set()
        return True

    def _written(self, content: Content, best: BestRecord | None) -> Failure | None:
        """Writes a state and removes old checkpoints; returns why it could not be written, None if it was."""
        try:
            self._index.write(content, best)
        except BaseException as error:
            # Whatever the error is, training must not wait forever for the outcome.
            logger.exception("checkpoint of step %d", content.step)
            # The run ends because of another process or a signal, and reports that itself.
            if not isinstance(error, ProcessError | Interrupted):
                self._warn(f"could not write the checkpoint of step {content.step}: {error}; training continues")
            return Failure(content.step, str(error), _is_disk_full(error), best)
        try:
            # Only now: until the new checkpoint is on the disk, the old ones are what a resumed run has.
            for line in self._index.remove_old(self._config.keep):
                self._warn(line)
        except BaseException:
            logger.exception("removal of checkpoints before step %d", content.step)
        return None


def _improves(goal: Objective, value: float, best: BestRecord | None) -> bool:
    """Returns whether a value is better than the best so far, which may be of another metric; NaN never is."""
    if best is None or best["metric"] != goal.metric:
        return not math.isnan(value)
    return goal.improves(value, best["value"])


def _is_disk_full(error: BaseException) -> bool:
    """Returns whether an error says that a disk or a quota is full."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def take_state(engine: Engine, about: Mapping[str, Any]) -> Take:
    """Returns a function that copies an engine's state and the metrics into the content of a checkpoint.

    Args:
      engine: built.
      about: what every checkpoint of the run records: run, config, seed, versions and data.
    """

    def take(step: int, recorder: MetricRecorder) -> Content:
        # The metrics of calls that still run are read first: a checkpoint holds the metrics up to its own step. The
        # devices train meanwhile, so this is no cost of the save.
        with work.clock().doing(work.TRAINING):
            recorder.drain()
        now = {"saved_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "metrics": recorder.latest()}
        shards = engine.shards()
        # NumPy arrays are copies already and need no other.
        size = 0
        for shard in itertools.chain.from_iterable(shards.values()):
            if not isinstance(shard.array, np.ndarray):
                size += shard.array.nbytes
        passing = size > MOST_COPIED
        if passing:
            # Emptied when the shards are taken, so that nothing keeps the devices' memory during an upload.
            shards = dict(shards)
        else:
            shards = {path: list(map(_copied, pieces)) for path, pieces in shards.items()}
        return Content(step, shards, recorder.arrays(), {**about, **now}, passing=passing)

    return take


def _copied(shard: Shard) -> Shard:
    """Returns a shard whose array no step changes."""
    if isinstance(shard.array, np.ndarray):
        return shard
    return replace(shard, array=np.array(shard.array))
