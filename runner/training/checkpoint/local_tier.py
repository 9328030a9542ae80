"""The fast tier on local disks: each group of processes has a folder of its own, which the other groups don't see.

A checkpoint of this tier counts only if every group has its part of the same save, whole. So each group keeps the
checkpoint before until all groups have written the new one: if the processes die between the groups' manifests, a
resumed run continues from the one before.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from runner.config.schema import CheckpointConfig
from runner.processes.team import Team
from runner.training.checkpoint import runs, slices, storage
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.groups import Group
from runner.training.checkpoint.index import BestRecord
from runner.training.checkpoint.manifest import Lineage
from runner.training.checkpoint.reading import Checkpoint, read_manifest
from runner.training.checkpoint.runs import SavedRun
from runner.training.checkpoint.saver import CheckpointSaver, Failure, Take
from runner.training.checkpoint.slices import SlicedCheckpoint
from runner.training.checkpoint.storage import Content
from runner.training.recorder import MetricRecorder

# The most groups whose checkpoints a message lists.
_MOST_LISTED = 3

# Step and lineage of a checkpoint -> whether a run may continue from it.
Continues = Callable[[int, Lineage], bool]


class LocalSaver(CheckpointSaver):
    """Saves the slices of this process's group in the group's own folder, at the same steps as the other groups."""

    def __init__(
        self,
        config: CheckpointConfig,
        take: Take,
        warn: Callable[[str], None],
        start: int,
        group: Group,
        team: Team,
        history: Lineage,
    ) -> None:
        """Starts the writer thread; see `CheckpointSaver`.

        Args:
          config: when to save, which is by minutes alone; one checkpoint is kept.
          take: copies the slices that this process writes, see `slices.take_slices`.
          warn: prints one line.
          start: step that the run begins with.
          group: of this process.
          team: the processes of the run.
          history: the lineage that this run writes.
        """
        self._run = team
        self._group = group
        self._asked = itertools.count()
        # Steps that this group has written, but another one could not.
        self._in_vain: list[int] = []
        super().__init__(config, group.folder, take, warn, start, goal=None, team=group, history=history)

    def save_if_due(self, step: int, recorder: MetricRecorder) -> None:
        """Saves when the last save is `every_minutes` old by the clock of the run's process 0."""
        minutes = self._config.every_minutes
        assert minutes is not None
        is_late = self._run.broadcast(
            f"the local fast tier is late {next(self._asked)}",
            lambda: time.monotonic() - self._saved_at >= 60.0 * minutes,
        )
        if is_late:
            self.save(step, recorder)

    def go_back(self, below: int) -> Checkpoint | None:
        """Returns the last intact checkpoint of fewer than `below` steps that all groups have, removing all others."""
        self._wait()
        self._saved_step = -1
        self._failed = None
        saves: dict[int, str] = {}
        for step in self._index.steps:
            if step < below:
                saves[step] = _save_of(self._group, step)
        key = f"the local fast tier goes back {next(self._asked)}"
        checkpoint = newest_common(key, saves, self._group, self._run, self._warn, lambda _: None)
        for line in self._index.discard(but=None if checkpoint is None else checkpoint.step):
            self._warn(line)
        self._in_vain.clear()
        return checkpoint

    def _clean(self) -> None:
        """Removes what an earlier process left unfinished; a folder that can't be written is reported by the save."""
        with suppress(OSError):
            super()._clean()

    def _written(self, content: Content, best: BestRecord | None) -> Failure | None:
        """Writes a state; returns why the groups could not, None if all could."""
        failure = super()._written(content, best)
        if failure is None:
            # That has removed all others.
            self._in_vain.clear()
            return None
        # While one group fails, the others keep the last save that all have written and this one, and no other.
        for step in self._in_vain:
            self._index.steps.discard(step)
            if self._team.is_first:
                with suppress(OSError):
                    storage.remove(self._folder, step)
        self._in_vain.clear()
        if storage.is_checkpoint(storage.place(self._folder, content.step)):
            # Another group could not write it, so no run can use it. It is removed with the next one.
            self._index.steps.add(content.step)
            self._in_vain.append(content.step)
        if self._team.is_first:
            # If another group could not even begin, this one has begun in vain.
            with suppress(OSError):
                storage.clean(self._folder)
        return failure


def _save_of(group: Group, step: int) -> str:
    """Returns the number of the save that a checkpoint in a group's folder is of; empty: it can't be read."""
    place = storage.place(group.folder, step)
    try:
        return slices.parse(place, read_manifest(place).about).save
    except DamagedError:
        return ""


def newest_common(
    key: str,
    saves: Mapping[int, str],
    group: Group,
    team: Team,
    say: Callable[[str], object],
    check: Callable[[Checkpoint], None],
) -> SlicedCheckpoint | None:
    """Returns this group's part of the newest checkpoint that all groups have, whole; None: there is none.

    All processes call this.

    Args:
      key: of the exchange, used once.
      saves: in the group's first process, the number of the save of each checkpoint in the group's folder, by step.
      group: of this process.
      team: the processes of the run.
      say: is called in process 0 with one line about a checkpoint that is damaged.
      check: of a checkpoint; raises `DamagedError` if the run can't continue from it.
    """
    offers = team.all_gather(f"{key}: the saves", [[step, save] for step, save in saves.items()])
    of_groups = [{(step, save) for step, save in offers[first]} for first in group.firsts]
    for step, save in sorted(set.intersection(*of_groups), reverse=True):
        place = storage.place(group.folder, step)
        problem = ""
        # The first process of a group reads every byte; the others look for the manifest.
        if group.is_first:
            try:
                check(SlicedCheckpoint(place))
            except DamagedError as error:
                problem = str(error)
        elif _save_of(group, step) != save:
            problem = f"process {team.index} can't read {place}"
        problems = list(filter(None, team.all_gather(f"{key}: step {step}", problem)))
        if not problems:
            return SlicedCheckpoint(place, trusted=True)
        if team.is_first:
            say(f"warning: {problems[0]}; it is skipped")
    return None


def newer(
    content: Mapping[str, Any],
    run: SavedRun,
    start: str,
    group: Group,
    team: Team,
    say: Callable[[str], object],
    continues: Continues,
) -> SlicedCheckpoint | None:
    """Returns this group's part of the newest checkpoint that all groups have and that a run can continue from.

    All processes call this.

    Args:
      content: the config of this start, resolved.
      run: the run, locked.
      start: says from where the run continues otherwise.
      group: of this process.
      team: the processes of the run.
      say: is called in process 0 with one line about checkpoints that are not taken.
      continues: see `Continues`.
    """
    saves: dict[int, str] = {}
    offer = ""
    if group.is_first:
        saves, offer = _offered(content, group, continues)
    offers = team.all_gather("the local fast tier offers", offer)
    said: list[str] = []

    def note(line: str) -> None:
        said.append(line)
        say(line)

    checkpoint = newest_common(
        "the local fast tier", saves, group, team, note, lambda candidate: runs.check_run(candidate, run)
    )
    if checkpoint is None and not said and team.is_first and any(offers):
        say(f"warning: the machines' fast folders have no checkpoint in common ({_listed(offers, group)}); {start}")
    return checkpoint


def _offered(content: Mapping[str, Any], group: Group, continues: Continues) -> tuple[dict[int, str], str]:
    """Returns the saves in a group's folder that a run can continue from, by step, and what the folder has in words.

    The words are empty if there is nothing that is newer than the run's own checkpoints.
    """
    saves: dict[int, str] = {}
    words: list[str] = []
    for step, lineage in storage.lineages(group.folder).items():
        if not continues(step, lineage):
            continue
        place = storage.place(group.folder, step)
        try:
            about = read_manifest(place).about
            if slices.RECORD not in about:
                words.append(f"step {step:,} was saved when all processes shared a folder")
                continue
            record = slices.parse(place, about)
        except DamagedError as error:
            words.append(str(error))
            continue
        problem = slices.misfit(record, about, content, group)
        if problem:
            words.append(f"step {step:,} {problem}")
            continue
        saves[step] = record.save
        words.append(f"step {step:,}")
    return saves, " and ".join(words)


def _listed(offers: list[str], group: Group) -> str:
    """Returns what the groups' folders have, each with the group's first process; equal ones are listed once."""
    ranks_by_offer: dict[str, int] = {}
    for first in group.firsts:
        ranks_by_offer.setdefault(offers[first] or "none", first)
    listed = [f"process {rank}: {offer}" for offer, rank in ranks_by_offer.items()]
    return "; ".join(listed[:_MOST_LISTED])
