"""When a run saves, and which of its checkpoints are kept. Files are written by a thread of its own."""

from __future__ import annotations

import errno
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner.config.schema import CheckpointConfig
from runner.engine.base import Engine, Shard
from runner.errors import Interrupted
from runner.processes.team import ALONE, ProcessError, Team
from runner.task.base import Evaluation
from runner.training.checkpoint import best as record
from runner.training.checkpoint import storage
from runner.training.checkpoint.kept import Kept
from runner.training.checkpoint.storage import Checkpoint, Content, DamagedError
from runner.training.history import History
from runner.training.stopping import Objective
from runner.training.stopping import best as best_of

logger = logging.getLogger(__name__)

MOST_COPIED = 1 << 30  # bytes of a process's state from which on it is not copied to be written

Take = Callable[[int, History], Content]


class Saver:
    """Saves the state of a run; the loop asks it after every device call. This one saves nothing (`enabled=false`)."""

    @property
    def folder(self) -> Path | None:
        """Where it saves; null: nowhere."""
        return None

    def begin(self, step: int, history: History) -> None:
        """Saves the state that a run begins with, unless it has that."""

    def steps_left(self, step: int) -> int | None:  # noqa: ARG002
        """Returns after how many more steps a call has to end because a save is due; None: no step is bound."""
        return None

    def save_if_due(self, step: int, history: History) -> None:
        """Saves where the number of steps or the time says so."""

    def save_last(self, step: int, history: History) -> str | None:  # noqa: ARG002
        """Saves the state that a run ends with, and waits for it; returns why that can't be done, in words."""
        return None

    def save(self, step: int, history: History) -> None:
        """Saves now."""

    def evaluated(self, step: int, history: History, evaluation: Evaluation) -> None:
        """Takes an evaluation; saves where it is the best so far."""

    def go_back(self, below: int) -> Checkpoint | None:  # noqa: ARG002
        """Returns the last checkpoint of fewer than so many steps and removes those after it; None: there is none."""
        return None

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint so far; None: there is none."""
        return None

    def best_unsaved(self) -> str | None:
        """Returns why the best evaluation so far has no checkpoint, in words; None: it has."""
        return None

    def close(self) -> None:
        """Waits until everything is on the disk."""


@dataclass(frozen=True)
class _Failed:
    """A checkpoint that could not be written.

    Attributes:
      step: its step.
      error: why.
      best: what would have been recorded of it as the best.
    """

    step: int
    error: BaseException
    best: Mapping[str, Any] | None


class CheckpointSaver(Saver):
    """Saves every so many steps or minutes, at the best evaluation, and when it is told to.

    The state is copied from the devices between two calls; the copy is written while training goes on. A state that is
    too large to be held twice is written straight from the devices, while training waits.

    A write that fails is said and logged, and training goes on: what is on the disk stays, and the last state is tried
    again at the end. What counts as saved, or as the best, is what was written.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        folder: Path,
        take: Take,
        warn: Callable[[str], None],
        start: int = 0,
        goal: Objective | None = None,
        team: Team = ALONE,
    ) -> None:
        """Starts the thread.

        Args:
          config: when to save, and how many checkpoints to keep.
          folder: the run's checkpoints.
          take: copies the state of the run.
          warn: shows one line to the user.
          start: step that the run begins with, which needs no saving.
          goal: what the best checkpoint is the best by; None: none is.
          team: the processes of the run, each of which has one of this.
        """
        self._goal = goal
        self._team = team
        self._asked = itertools.count()
        self._config = config
        self._folder = folder
        self._take = take
        self._warn = warn
        if team.is_first:
            storage.clean(folder)
        self._kept = Kept(folder, start, team)
        self._failed: _Failed | None = None
        self._failed_best: _Failed | None = None
        self._best: Mapping[str, Any] | None = self._kept.best()  # that was written
        self._hoped: Mapping[str, Any] | None = self._best  # or waits to be
        self._saved_step = start
        self._saved_at = time.monotonic()
        # One checkpoint may wait while another is written; a third save waits, so that memory stays bounded.
        self._queue: queue.Queue[tuple[Content, Mapping[str, Any] | None] | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Path:
        """Where it saves."""
        return self._folder

    def begin(self, step: int, history: History) -> None:
        """Saves the state that a run begins with, unless it has that: one that goes on has."""
        self._note_best(history)
        if step not in self._kept.steps:
            self._saved_step = -1
            self.save(step, history)

    def _note_best(self, history: History) -> None:
        """Notes the best of the evaluations so far, where a process died after its checkpoint and before the note."""
        goal = self._goal
        found = None if goal is None else best_of(goal, history.evaluations)
        if goal is None or found is None or found[0] not in self._kept.steps:
            return
        step = found[0]
        value = goal.value(found[1])
        if _improves(goal, value, self._best):
            self._hoped = self._best = {"metric": goal.metric, "value": value, "step": step}
            try:
                if self._team.is_first:
                    record.write(self._folder, self._best)
            except OSError as error:
                self._warn(f"step {step} is not noted as the best: {error}; training goes on")

    def steps_left(self, step: int) -> int | None:
        """Returns the steps until the next multiple of `every_steps`."""
        every = self._config.every_steps
        return None if every is None else every - step % every

    def save_if_due(self, step: int, history: History) -> None:
        """Saves at multiples of `every_steps`, and when the last save is `every_minutes` old."""
        every = self._config.every_steps
        minutes = self._config.every_minutes
        late = minutes is not None and self._team.broadcast(
            f"late {next(self._asked)}", lambda: time.monotonic() - self._saved_at >= 60.0 * minutes
        )
        if late or (every is not None and step % every == 0):
            self.save(step, history)

    def save(self, step: int, history: History) -> None:
        """Copies the state and hands it to the thread; does nothing where this step is saved already."""
        self._put(step, history, None)

    def save_last(self, step: int, history: History) -> str | None:
        """Saves the state that a run ends with, and waits for it.

        Where that fails it is tried once more. On a full disk checkpoints before the last good one make room: they
        would go next in any case, as soon as this one is written.

        Returns:
          Why it can't be saved, and what to do, in words.
        """
        self.save(step, history)
        self._queue.join()
        if self._failed is not None:
            if _is_full(self._failed.error) and (gone := self._kept.make_room()):
                self._warn(f"the checkpoints of steps {', '.join(map(str, gone))} are removed, to save the last state")
            self.save(step, history)
            self._queue.join()
        if self._failed is None:
            return None
        there = max(self._kept.steps, default=None)
        again = "start again" if there is None else f"resume={self._folder.as_posix()} goes on from step {there:,}"
        return (
            f"the state of step {step:,} is not saved ({self._failed.error}); make room in {self._folder} or make it "
            f"writable, and {again}"
        )

    def evaluated(self, step: int, history: History, evaluation: Evaluation) -> None:
        """Saves the best evaluation so far, by `trainer.checkpoint.best`."""
        goal = self._goal
        if goal is None:
            return
        value = goal.value(evaluation)
        if self._hoped is not self._best and _improves(goal, value, self._best):
            self._queue.join()  # the best that is being written may fail, and this one be the next to it
        if _improves(goal, value, self._hoped):
            self._hoped = {"metric": goal.metric, "value": value, "step": step}
            self._put(step, history, self._hoped)

    def go_back(self, below: int) -> Checkpoint | None:
        """Returns the last whole checkpoint of fewer than so many steps, and removes those of this history after it.

        These go at once, unlike those that a user goes back behind: they lead to a loss that is not finite, so that
        nobody can go on from them, and a process that dies now must not. The next save writes, whatever the step: what
        a run does from there on is not what it did before.
        """
        self._queue.join()
        self._saved_step = -1
        self._failed = None
        self._failed_best = None
        found = None
        for step in sorted(self._kept.steps, reverse=True):
            if step >= below:
                self._kept.give_up(step, damaged=False)
                continue
            try:
                found = self._kept.opened(step)
                break
            except DamagedError as error:
                self._warn(f"{error}; the checkpoint before it is taken")
                self._kept.give_up(step, damaged=True)
        self._hoped = self._best = self._kept.best()
        return found

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint so far.

        Raises:
          DamagedError: its bytes are not those that were written.
        """
        self._queue.join()
        return None if self._best is None else self._kept.opened(int(self._best["step"]))

    def best_unsaved(self) -> str | None:
        """Returns why the best evaluation so far has no checkpoint, in words; None: it has, as far as is known."""
        self._queue.join()
        failed = self._failed_best
        return None if failed is None else f"the state of step {failed.step:,} is not saved ({failed.error})"

    def close(self) -> None:
        """Waits until everything is on the disk, and ends the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _put(self, step: int, history: History, best: Mapping[str, Any] | None) -> None:
        if self._team.count > 1 and step == self._saved_step:
            self._queue.join()  # all processes must know alike whether that write has failed
        failed = self._failed if self._failed is not None and self._failed.step == step else None
        if step == self._saved_step and best is None and failed is None:
            return
        if best is None:  # the best is written again, or once more
            known = [one for one in (failed and failed.best, self._best) if one and one["step"] == step]
            best = known[0] if known else None
        content = replace(self._take(step, history), went_back=self._kept.lineage)
        self._queue.put((content, best))
        if content.passing:
            del content
            self._queue.join()
        self._saved_step = step
        self._saved_at = time.monotonic()

    def _run(self) -> None:
        more = True
        while more:
            try:
                more = self._write_next()
            finally:
                self._queue.task_done()  # nothing holds the state any more

    def _write_next(self) -> bool:
        """Waits for a state and writes it; returns whether there may be another."""
        item = self._queue.get()
        if item is None:
            return False
        content, best = item
        try:
            self._write(content, best)
        except (Exception, Interrupted) as error:
            logger.exception("checkpoint of step %d", content.step)
            if not isinstance(error, ProcessError | Interrupted):  # for which the run ends, in a line of its own
                self._warn(f"the checkpoint of step {content.step} is not written: {error}; training goes on")
        return True

    def _write(self, content: Content, best: Mapping[str, Any] | None) -> None:
        try:
            self._kept.write(content, best)
        except (Exception, Interrupted) as error:
            self._failed = _Failed(content.step, error, best)
            if best is not None:
                self._failed_best = self._failed
                self._hoped = self._best if self._hoped is best else self._hoped
            raise
        if self._failed is not None and self._failed.step <= content.step:
            self._failed = None
        if best is not None:
            self._best = best
            lost = self._failed_best.best if self._failed_best else None
            if lost is None or self._goal is None or not _improves(self._goal, lost["value"], best):
                self._failed_best = None
        for line in self._kept.remove_old(self._config.keep, content.step):
            self._warn(line)


def _improves(goal: Objective, value: float, best: Mapping[str, Any] | None) -> bool:
    """Returns whether a value is better than the best so far, which may be of another metric; NaN never is."""
    if best is None or best["metric"] != goal.metric:
        return not math.isnan(value)
    return goal.improves(value, best["value"])


def _is_full(error: BaseException) -> bool:
    """Returns whether a disk or a quota is full."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def take_state(engine: Engine, about: Mapping[str, Any]) -> Take:
    """Returns what takes an engine's state and a history into a checkpoint's content.

    Args:
      engine: built.
      about: what every checkpoint of the run says of itself.
    """

    def take(step: int, history: History) -> Content:
        history.drain()
        now = {"saved_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "metrics": history.latest()}
        shards: Mapping[str, Sequence[Shard]] = engine.shards()
        arrays = [shard.array for pieces in shards.values() for shard in pieces]
        size = sum(array.nbytes for array in arrays if not isinstance(array, np.ndarray))  # which are copies already
        passing = size > MOST_COPIED
        if not passing:
            shards = {path: [_copied(shard) for shard in pieces] for path, pieces in shards.items()}
        return Content(step, shards, history.arrays(), {**about, **now}, passing=passing)

    return take


def _copied(shard: Shard) -> Shard:
    """Returns a shard whose array no step changes."""
    return shard if isinstance(shard.array, np.ndarray) else replace(shard, array=np.array(shard.array))
