"""The checkpoints of a run that is training: which of them stay, and which history they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.config.errors import ConfigError
from runner.training.checkpoint import best as record
from runner.training.checkpoint import lineage, storage
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.lineage import Lineage
from runner.training.checkpoint.storage import Content


def after(folder: Path, start: int) -> list[int]:
    """Returns the steps of a run's checkpoints that are no part of the history that goes on from one of them."""
    found = storage.lineages(folder)
    history = lineage.goes_on(found, start)
    return [step for step, own in found.items() if not lineage.is_part(step, own, history)]


class Kept:
    """What lies in a run's folder, as the process that writes there knows it.

    Attributes:
      lineage: the history that this process writes.
      steps: checkpoints of it.
    """

    def __init__(self, folder: Path, start: int) -> None:
        """Looks into a folder.

        Args:
          folder: the run's checkpoints.
          start: step that the run begins with.
        """
        self._folder = folder
        found = storage.lineages(folder)
        self.lineage: Lineage = lineage.goes_on(found, start)
        # What only has the name of a checkpoint is not counted among those that are kept.
        self.steps = {
            step
            for step, own in found.items()
            if lineage.is_part(step, own, self.lineage) and storage.is_checkpoint(storage.place(folder, step))
        }
        self._superseded = {step for step, own in found.items() if not lineage.is_part(step, own, self.lineage)}

    def best(self) -> dict[str, Any] | None:
        """Returns what is recorded of the best checkpoint of this history; None where there is none."""
        recorded = self._recorded()
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
        step, recorded = content.step, self._recorded()
        if best is None and recorded is not None and recorded["step"] == step:
            record.forget(self._folder)  # of the history that this one takes the place of
        storage.write(self._folder, content)
        self.steps.add(step)
        self._superseded.discard(step)
        if best is not None:
            record.write(self._folder, best)

    def remove_old(self, keep: int, written: int) -> list[str]:
        """Removes what is not to be kept any more.

        Args:
          keep: how many of the last checkpoints stay, besides the best.
          written: step of the last one. What a user went back behind goes as soon as this history has come as far.

        Returns:
          What is left where it is, and why, in lines.
        """
        recorded, said = self._recorded(), []
        replaced = [step for step in self._superseded if step <= written]
        for step in [*replaced, *sorted(self.steps)[:-keep]]:
            if recorded is not None and recorded["step"] == step:
                continue
            try:
                if not storage.remove(self._folder, step):
                    said.append(
                        f"{storage.place(self._folder, step)} is left: it is not as a run of this kind wrote it"
                    )
            except OSError as error:
                said.append(f"{storage.place(self._folder, step)} can't be removed: {error}")
            self.steps.discard(step)
            self._superseded.discard(step)
        return said

    def make_room(self) -> list[int]:
        """Removes the checkpoints before the last one that is whole, but for the best.

        Returns:
          Their steps.
        """
        recorded = self._recorded()
        last = next((step for step in sorted(self.steps, reverse=True) if self._is_whole(step)), None)
        gone = [] if last is None else [step for step in sorted(self.steps) if step < last]
        gone = [step for step in gone if recorded is None or step != recorded["step"]]
        gone = [step for step in gone if storage.remove(self._folder, step)]
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
        recorded = self._recorded()
        if recorded is not None and recorded["step"] == step:
            record.forget(self._folder)
        if damaged or not storage.remove(self._folder, step):
            storage.set_aside(storage.place(self._folder, step))
        self.steps.discard(step)
