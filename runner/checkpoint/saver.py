"""When a run saves, and which of its checkpoints are kept. Files are written by a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from runner.checkpoint import storage
from runner.checkpoint.storage import Checkpoint, Content, DamagedError
from runner.engine.base import Engine, EvalMetrics
from runner.history import History
from runner.schema import CheckpointConfig
from runner.stopping import better, value_of

logger = logging.getLogger(__name__)

Take = Callable[[int, History], Content]


class Saver(Protocol):
    """Saves the state of a run; the loop asks it after every device call."""

    def begin(self, history: History) -> None:
        """Saves the state before the first step."""

    def steps_left(self, step: int) -> int | None:
        """Returns after how many more steps a call has to end because a save is due; None: no step is bound."""

    def save_if_due(self, step: int, history: History) -> None:
        """Saves where the number of steps or the time says so."""

    def save(self, step: int, history: History) -> None:
        """Saves now."""

    def evaluated(self, step: int, history: History, metrics: EvalMetrics) -> None:
        """Takes an evaluation; saves where it is the best so far."""

    def go_back(self, below: int) -> Checkpoint | None:
        """Returns the last checkpoint of fewer than so many steps and removes those after it; None: there is none."""

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint so far; None: there is none."""

    def close(self) -> None:
        """Waits until everything is on the disk."""


class NoSaver:
    """Saves nothing (`trainer.checkpoint.enabled=false`)."""

    def begin(self, history: History) -> None:
        """See `Saver`."""

    def steps_left(self, step: int) -> int | None:
        """See `Saver`."""
        del step
        return None

    def save_if_due(self, step: int, history: History) -> None:
        """See `Saver`."""

    def save(self, step: int, history: History) -> None:
        """See `Saver`."""

    def evaluated(self, step: int, history: History, metrics: EvalMetrics) -> None:
        """See `Saver`."""

    def go_back(self, below: int) -> Checkpoint | None:
        """See `Saver`."""
        del below
        return None

    def best(self) -> Checkpoint | None:
        """See `Saver`."""
        return None

    def close(self) -> None:
        """See `Saver`."""


class CheckpointSaver:
    """Saves every so many steps or minutes, at the best evaluation, and when it is told to.

    The state is copied from the devices between two calls; the copy is written while training goes on. A write that
    fails is said and logged, and training goes on: what is on the disk stays.
    """

    def __init__(
        self, config: CheckpointConfig, folder: Path, take: Take, warn: Callable[[str], None], start: int = 0
    ) -> None:
        """Starts the thread.

        Args:
          config: when to save, and how many checkpoints to keep.
          folder: the run's checkpoints.
          take: copies the state of the run.
          warn: shows one line to the user.
          start: step that the run begins with, which needs no saving.
        """
        self._config, self._folder, self._take, self._warn = config, folder, take, warn
        storage.clean(folder)
        for step in storage.steps(folder):  # of the same run, that it went back behind: their steps are done again
            if step > start:
                storage.remove(folder, step)
        self._best = storage.best(folder)
        self._saved_step, self._saved_at = start, time.monotonic()
        # One checkpoint may wait while another is written; a third save waits, so that memory stays bounded.
        self._queue: queue.Queue[tuple[Content, dict[str, Any] | None] | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def begin(self, history: History) -> None:
        """Saves the state before the first step."""
        self._saved_step = -1
        self.save(0, history)

    def steps_left(self, step: int) -> int | None:
        """Returns the steps until the next multiple of `every_steps`."""
        every = self._config.every_steps
        return None if every is None else every - step % every

    def save_if_due(self, step: int, history: History) -> None:
        """Saves at multiples of `every_steps`, and when the last save is `every_minutes` old."""
        every, minutes = self._config.every_steps, self._config.every_minutes
        late = minutes is not None and time.monotonic() - self._saved_at >= 60.0 * minutes
        if late or (every is not None and step % every == 0):
            self.save(step, history)

    def save(self, step: int, history: History) -> None:
        """Copies the state and hands it to the thread; does nothing where this step is saved already."""
        self._put(step, history, None)

    def evaluated(self, step: int, history: History, metrics: EvalMetrics) -> None:
        """Saves the best evaluation so far, by `trainer.checkpoint.best`."""
        metric = self._config.best
        if metric is None:
            return
        value = value_of(metric, metrics)
        before = self._best["value"] if self._best and self._best["metric"] == metric else None
        if value == value and (before is None or better(metric, value, before)):
            self._best = {"metric": metric, "value": value, "step": step}
            self._put(step, history, self._best)

    def go_back(self, below: int) -> Checkpoint | None:
        """Returns the last whole checkpoint of fewer than so many steps, and removes those after it.

        The next save writes, whatever the step: what a run does from there on is not what it did before.
        """
        self._queue.join()
        self._saved_step = -1
        for step in reversed(storage.steps(self._folder)):
            try:
                if step < below:
                    return Checkpoint(storage.place(self._folder, step))
            except DamagedError as error:
                self._warn(f"{error}; the checkpoint before it is taken")
            storage.remove(self._folder, step)
            self._best = storage.best(self._folder)
        return None

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint so far.

        Raises:
          DamagedError: its bytes are not those that were written.
        """
        self._queue.join()
        found = storage.best(self._folder)
        return None if found is None else Checkpoint(storage.place(self._folder, int(found["step"])))

    def close(self) -> None:
        """Waits until everything is on the disk, and ends the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _put(self, step: int, history: History, record: dict[str, Any] | None) -> None:
        if step == self._saved_step and record is None:
            return
        self._queue.put((self._take(step, history), record))
        self._saved_step, self._saved_at = step, time.monotonic()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            content, record = item
            try:
                storage.write(self._folder, content)
                if record is not None:
                    storage.write_json(self._folder / storage.BEST, record)
                self._remove_old()
            except Exception as error:
                logger.exception("checkpoint of step %d", content.step)
                self._warn(f"the checkpoint of step {content.step} is not written: {error}; training goes on")
            finally:
                self._queue.task_done()

    def _remove_old(self) -> None:
        kept = storage.best(self._folder)
        for step in storage.steps(self._folder)[: -self._config.keep]:
            if kept is None or step != kept["step"]:
                storage.remove(self._folder, step)


def take_state(engine: Engine, about: Mapping[str, Any]) -> Take:
    """Returns what copies an engine's state and a history into a checkpoint's content.

    Args:
      engine: built.
      about: what every checkpoint of the run says of itself.
    """

    def take(step: int, history: History) -> Content:
        now = {"saved_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "metrics": history.latest()}
        history.drain()
        return Content(step, engine.parts(), history.arrays(), {**about, **now})

    return take
