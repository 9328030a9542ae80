"""The checkpoints of a run that is training: which of them stay, and which history they belong to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from runner.errors import ConfigError
from runner.processes.team import ALONE, Team
from runner.training.checkpoint import best as record
from runner.training.checkpoint import lineage, storage
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.lineage import Lineage
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.storage import Content

T = TypeVar("T")


def after(folder: Path, start: int) -> list[int]:
    """Returns the steps of a run's checkpoints that are no part of the history that goes on from one of them."""
    found = storage.lineages(folder)
    history = lineage.goes_on(found, start)
    return [step for step, own in found.items() if not lineage.is_part(step, own, history)]


class Kept:
    """What lies in a run's folder, as the processes that write there know it; process 0 looks, and removes.

    Attributes:
      lineage: the history that this process writes.
      steps: checkpoints of it.
    """

    def __init__(self, folder: Path, start: int, team: Team = ALONE) -> None:
        """Looks into a folder.

        Args:
          folder: the run's checkpoints.
          start: step that the run begins with.
          team: the processes of the run; every method is called by all of them.
        """
        self._folder = folder
        self._team = team
        self._asked = itertools.count()

        def look() -> list[Any]:
            found = storage.lineages(folder)
            own = lineage.goes_on(found, start)
            part = [step for step, other in found.items() if lineage.is_part(step, other, own)]
            # What only has the name of a checkpoint is not counted among those that are kept.
            steps = [step for step in part if storage.is_checkpoint(storage.place(folder, step))]
            return [[list(pair) for pair in own], steps, [step for step in found if step not in part]]

        pairs, steps, superseded = self._told(look)
        self.lineage: Lineage = tuple((one[0], one[1]) for one in pairs)
        self.steps = set(steps)
        self._superseded = set(superseded)

    def _told(self, make: Callable[[], T]) -> T:
        """Returns what process 0 finds or does."""
        return self._team.broadcast(f"kept {next(self._asked)}", make)

    def best(self) -> dict[str, Any] | None:
        """Returns what is recorded of the best checkpoint of this history; None where there is none."""
        recorded = self._told(self._recorded)
        return recorded if recorded is not None and recorded["step"] in self.steps else None

    def _recorded(self) -> dict[str, Any] | None:
        try:
            return record.read(self._folder)
        except ConfigError:
            return None

    def write(self, content: Content, best: Mapping[str, Any] | None) -> None:
        """Writes a checkpoint, and notes it as the best where it is.

        Raises:
          OSError: as `storage.write`.
        """
        step = content.step

        def forget() -> None:
            recorded = self._recorded()
            if best is None and recorded is not None and recorded["step"] == step:
                record.forget(self._folder)  # of the history that this one takes the place of

        self._told(forget)
        storage.write(self._folder, content, self._team)
        self.steps.add(step)
        self._superseded.discard(step)
        if best is not None:
            self._told(lambda: record.write(self._folder, best))

    def remove_old(self, keep: int, written: int) -> list[str]:
        """Removes what is not to be kept any more.

        Args:
          keep: how many of the last checkpoints stay, besides the best.
          written: step of the last one. What a user went back behind goes as soon as this history has come as far.

        Returns:
          What is left where it is, and why, in lines.
        """

        def remove() -> list[list[Any]]:
            recorded = self._recorded()
            said = list[str]()
            replaced = [step for step in self._superseded if step <= written]
            steps = [*replaced, *sorted(self.steps)[:-keep]]
            gone = [step for step in steps if recorded is None or recorded["step"] != step]
            for step in gone:
                try:
                    if not storage.remove(self._folder, step):
                        place = storage.place(self._folder, step)
                        said.append(f"{place} is left: it is not as a run of this kind wrote it")
                except OSError as error:
                    said.append(f"{storage.place(self._folder, step)} can't be removed: {error}")
            return [said, gone]

        lines, gone = self._told(remove)
        self.steps -= set(gone)
        self._superseded -= set(gone)
        return lines

    def make_room(self) -> list[int]:
        """Removes the checkpoints before the last one that is whole, but for the best.

        Returns:
          Their steps.
        """

        def remove() -> list[int]:
            recorded = self._recorded()
            last = next((step for step in sorted(self.steps, reverse=True) if self._is_whole(step)), None)
            gone = [] if last is None else [step for step in sorted(self.steps) if step < last]
            gone = [step for step in gone if recorded is None or step != recorded["step"]]
            return [step for step in gone if storage.remove(self._folder, step)]

        gone = self._told(remove)
        self.steps -= set(gone)
        return gone

    def _is_whole(self, step: int) -> bool:
        try:
            storage.Checkpoint(storage.place(self._folder, step))
        except DamagedError:
            return False
        return True

    def give_up(self, step: int, *, damaged: bool) -> None:
        """Takes a checkpoint from sight for good: it is removed, or set aside where it is damaged."""

        def put_away() -> None:
            recorded = self._recorded()
            if recorded is not None and recorded["step"] == step:
                record.forget(self._folder)
            if damaged or not storage.remove(self._folder, step):
                storage.set_aside(storage.place(self._folder, step))

        self._told(put_away)
        self.steps.discard(step)

    def opened(self, step: int) -> Checkpoint:
        """Returns one of the checkpoints; process 0 has found that it is whole.

        Raises:
          DamagedError: its bytes are not those that were written.
        """
        place = storage.place(self._folder, step)
        if self._team.count == 1:
            return Checkpoint(place)

        def look() -> str:
            try:
                Checkpoint(place)
            except DamagedError as error:
                return str(error)
            return ""

        if why := self._told(look):
            raise DamagedError(why)
        return Checkpoint(place, trusted=True)
