"""The checkpoints of one run: which of them a run that continues has, which is the best, and which are kept.

`resume=<run>@100` of a run with checkpoints of steps 100, 200 and 300 removes those of 200 and 300: the run trains
these steps again.

The best checkpoint is noted in `best.json`: its step, and the metric and value that it is the best by.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from runner.checkpoint import (
    files,
    storage,
)
from runner.checkpoint.files import (
    LARGEST_RECORD,
    DamagedError,
)
from runner.checkpoint.reading import (
    Checkpoint,
    read_manifest,
)
from runner.checkpoint.storage import Content
from runner.checkpoint.typed import (
    MisfitError,
    read,
)
from runner.cluster.team import (
    ALONE,
    Team,
)
from runner.errors import ConfigError
from runner.host.stores.urls import Place

T = TypeVar("T")

BEST_FILE = "best.json"


class BestRecord(TypedDict):
    """The content of `best.json`.

    Attributes:
      metric: the name of the metric, such as `eval/loss`.
      value: the value of the metric.
      step: the step of the checkpoint.
    """

    metric: str
    value: float
    step: int


@dataclass(frozen=True)
class _Best:
    metric: str
    value: float
    step: int


def read_best(folder: Place) -> BestRecord | None:
    """Returns the record of a run's best checkpoint; None if there is none.

    Raises:
      DamagedError: the record is invalid; without the file, there is no best checkpoint.
    """
    path = folder / BEST_FILE
    if not files.exists(path):
        return None
    try:
        best = read(_Best, files.read_json(path, LARGEST_RECORD), "it")
        if best.step not in storage.steps(folder):
            raise MisfitError(f"there is no checkpoint of step {best.step}")
        # Damage of the checkpoint itself is reported to whoever opens it.
        with suppress(DamagedError):
            if read_manifest(storage.place(folder, best.step)).metrics.get(best.metric) != best.value:
                raise MisfitError(f"the checkpoint of step {best.step} has another value of {best.metric}")
    except MisfitError as error:
        raise DamagedError(f"{path} is invalid: {error}") from error
    return BestRecord(metric=best.metric, value=best.value, step=best.step)


def write_best(folder: Place, record: BestRecord) -> None:
    """Records which checkpoint is the best; the checkpoint is on the disk already.

    Raises:
      OSError: the disk is full or read-only.
    """
    files.write_json(folder / BEST_FILE, record)


def forget_best(folder: Place) -> None:
    """Removes the record of the best checkpoint, which is about to be removed or replaced."""
    files.remove(folder / BEST_FILE)


class CheckpointIndex:
    """The checkpoints in a run's folder, as the processes that write there know them.

    Process 0 alone reads and changes the folder; the others learn the results. So every method is called by all
    processes, in the same order.

    Attributes:
      steps: of the checkpoints.
    """

    def __init__(self, folder: Place, start: int, team: Team = ALONE) -> None:
        """Lists a folder, and removes its checkpoints of later steps.

        Args:
          folder: the run's checkpoints.
          start: step that the run begins with.
          team: the processes of the run.
        """
        self._folder = folder
        self._team = team
        # Numbers the keys of broadcasts: all processes call these methods, and in the same order.
        self._broadcasts = itertools.count()

        def listed() -> list[int]:
            best = self._recorded_best()
            if best is not None and best["step"] > start:
                forget_best(folder)
            steps: list[int] = []
            for step in storage.steps(folder):
                if step > start:
                    storage.remove(folder, step)
                # A folder that only has the name of a checkpoint must not count among the `keep` newest.
                elif storage.is_checkpoint(storage.place(folder, step)):
                    steps.append(step)
            return steps

        self.steps = set(self._broadcast(listed))

    def _broadcast(self, make: Callable[[], T]) -> T:
        """Calls a function in process 0 and returns its result in all processes."""
        return self._team.broadcast(f"kept {self._folder} {next(self._broadcasts)}", make)

    def best(self) -> BestRecord | None:
        """Returns the record of the best checkpoint; None if there is none."""
        record = self._broadcast(self._recorded_best)
        if record is None or record["step"] not in self.steps:
            return None
        return record

    def _recorded_best(self) -> BestRecord | None:
        try:
            return read_best(self._folder)
        except ConfigError:
            return None

    def _is_recorded_best(self, step: int) -> bool:
        record = self._recorded_best()
        return record is not None and record["step"] == step

    def write(self, content: Content, best: BestRecord | None) -> None:
        """Writes a checkpoint, and then records it as the best if it is.

        Raises:
          OSError: see `storage.write`.
        """
        storage.write(self._folder, content, self._team)
        self.steps.add(content.step)
        # Last: a process that dies before it leaves a best checkpoint without a record, which the saver notes when the
        # run is resumed. The other order would leave a record without a checkpoint.
        if best is not None:
            self._broadcast(lambda: write_best(self._folder, best))

    def remove_old(self, keep: int) -> list[str]:
        """Removes the checkpoints that are no longer kept.

        Args:
          keep: how many of the newest checkpoints stay, in addition to the best.

        Returns:
          One warning for each that could not be removed.
        """

        def remove() -> list[list[Any]]:
            warnings: list[str] = []
            removed: list[int] = []
            best = self._recorded_best()
            for step in sorted(self.steps)[:-keep]:
                if best is not None and best["step"] == step:
                    continue
                # What can't be removed is not tried again with each save: it is no longer counted either.
                removed.append(step)
                try:
                    if not storage.remove(self._folder, step):
                        place = storage.place(self._folder, step)
                        warnings.append(f"{place} is not removed: it is damaged")
                except OSError as error:
                    warnings.append(f"could not remove {storage.place(self._folder, step)}: {error}")
            return [warnings, removed]

        warnings, removed = self._broadcast(remove)
        self.steps -= set(removed)
        return warnings

    def make_room(self) -> list[int]:
        """Removes the checkpoints before the last intact one, except the best.

        Returns:
          The steps of those that were removed.
        """

        def remove() -> list[int]:
            best = self._recorded_best()
            intact = (step for step in sorted(self.steps, reverse=True) if self._is_intact(step))
            last = next(intact, None)
            removed: list[int] = []
            for step in sorted(self.steps):
                is_older = last is not None and step < last
                is_best = best is not None and best["step"] == step
                if is_older and not is_best and storage.remove(self._folder, step):
                    removed.append(step)
            return removed

        removed = self._broadcast(remove)
        self.steps -= set(removed)
        return removed

    def _is_intact(self, step: int) -> bool:
        try:
            Checkpoint(storage.place(self._folder, step))
        except DamagedError:
            return False
        return True

    def give_up(self, step: int) -> None:
        """Removes a checkpoint that no run may continue from, unless its manifest is damaged."""

        def put_away() -> None:
            if self._is_recorded_best(step):
                forget_best(self._folder)
            storage.remove(self._folder, step)

        self._broadcast(put_away)
        self.steps.discard(step)

    def opened(self, step: int) -> Checkpoint:
        """Returns one of the checkpoints, verified by process 0.

        Raises:
          DamagedError: the checkpoint is damaged.
        """
        place = storage.place(self._folder, step)
        if self._team.count == 1:
            return Checkpoint(place)

        def damage() -> str:
            try:
                Checkpoint(place)
            except DamagedError as error:
                return str(error)
            return ""

        reason = self._broadcast(damage)
        if reason:
            raise DamagedError(reason)
        return Checkpoint(place, trusted=True)
