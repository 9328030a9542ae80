"""Two tiers of checkpoints: the last state of a run in a fast folder, saved often, beside the run's own checkpoints.

`trainer.checkpoint.fast_folder` is a local disk or memory, whose content may be lost with the machine. The run's own
checkpoints, in a store for example, are saved less often and are what other commands read. A resumed run takes the
newest whole checkpoint that all of its processes can read.

If not all processes see the same fast folder, as with a local disk of each machine, each machine keeps the part of the
state that its own devices need, see `runner.training.checkpoint.local_tier`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.config.schema import CheckpointConfig
from runner.engine.base import Engine
from runner.host.stores.urls import Place
from runner.processes.team import Team
from runner.training.checkpoint import groups, index, local_tier, runs, slices, storage
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.manifest import Lineage
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.runs import SavedRun
from runner.training.checkpoint.saver import CheckpointSaver, Saver, take_state
from runner.training.recorder import MetricRecorder

_FAST_MINUTES = 2.0  # unless trainer.checkpoint.fast_every_minutes is set


class TieredSaver(Saver):
    """Saves in the run's own folder as its config says, and in between in the fast folder."""

    def __init__(self, durable: CheckpointSaver, fast: CheckpointSaver) -> None:
        """Takes one saver per tier.

        Args:
          durable: of the run's own folder.
          fast: of the fast folder, which keeps one checkpoint and no best one.
        """
        self._durable = durable
        self._fast = fast

    @property
    def folder(self) -> Place:
        """The run's own checkpoints."""
        return self._durable.folder

    def begin(self, step: int, recorder: MetricRecorder) -> None:
        """Saves the state that a run begins with in its own folder, unless it is there."""
        self._durable.begin(step, recorder)

    def steps_left(self, step: int) -> int | None:
        """Returns the steps until a device call must end for a save in the run's own folder; None: no limit."""
        return self._durable.steps_left(step)

    def save_if_due(self, step: int, recorder: MetricRecorder) -> None:
        """Saves in the run's own folder if that is due, else in the fast one if that is."""
        self._durable.save_if_due(step, recorder)
        if self._durable.saved_step == step:
            self._fast.note_saved_elsewhere()
        else:
            self._fast.save_if_due(step, recorder)

    def save(self, step: int, recorder: MetricRecorder) -> None:
        """Saves now, in the run's own folder."""
        self._durable.save(step, recorder)

    def save_last(self, step: int, recorder: MetricRecorder) -> str | None:
        """Saves the state that a run ends with in its own folder, and then removes what the fast one has of it."""
        problem = self._durable.save_last(step, recorder)
        if problem is None:
            self._fast.discard()
        return problem

    def evaluated(self, step: int, recorder: MetricRecorder) -> None:
        """Saves in the run's own folder if the last evaluation is the best so far."""
        self._durable.evaluated(step, recorder)

    def go_back(self, below: int) -> Checkpoint | None:
        """Returns the last checkpoint of fewer than `below` steps of both tiers, removing later ones."""
        fast = self._fast.go_back(below)
        durable = self._durable.go_back(below)
        if fast is None or (durable is not None and durable.step >= fast.step):
            return durable
        return fast

    def best(self) -> Checkpoint | None:
        """Returns the best checkpoint so far; None: there is none."""
        return self._durable.best()

    def best_unsaved(self) -> str | None:
        """Returns why the best evaluation so far has no checkpoint; None: it has one."""
        return self._durable.best_unsaved()

    def close(self) -> None:
        """Waits until both tiers are on their disks."""
        self._fast.close()
        self._durable.close()


def with_fast_tier(
    config: CheckpointConfig,
    run: SavedRun,
    durable: CheckpointSaver,
    engine: Engine,
    about: Mapping[str, Any],
    warn: Callable[[str], None],
    start: int,
    team: Team,
) -> CheckpointSaver | TieredSaver:
    """Returns the saver of a run, with the fast tier if the config has one.

    Args:
      config: when to save.
      run: whose state is saved.
      durable: the saver of the run's own folder.
      engine: built.
      about: what every checkpoint of the run records, see `take_state`.
      warn: prints one line.
      start: step that the run begins with.
      team: the processes of the run.
    """
    if config.fast_folder is None:
        return durable
    options = replace(config, every_steps=None, every_minutes=config.fast_every_minutes or _FAST_MINUTES, keep=1)
    # The fast folder forgets most checkpoints, so the history is that of the run's own folder.
    history = durable.lineage
    group = groups.of_folder("the fast tier", _folder(options, run), team)
    if group is None:
        # Process 0 decides: the others may have another path to it.
        folder = Path(team.broadcast("the fast folder", lambda: str(_folder(options, run))))
        take = take_state(engine, about)
        fast = CheckpointSaver(options, folder, take, warn, start, goal=None, team=team, history=history)
    else:
        take = slices.take_slices(engine, about, group, team)
        fast = local_tier.LocalSaver(options, take, warn, start, group, team, history)
    # Any other one is of steps that the run has left, or that not every process can read.
    fast.discard(but=start)
    return TieredSaver(durable, fast)


def newer(
    config: CheckpointConfig,
    content: Mapping[str, Any],
    run: SavedRun,
    checkpoint: Checkpoint | None,
    team: Team,
    say: Callable[[str], object],
) -> Checkpoint | None:
    """Returns the whole checkpoint of the fast tier that all processes can read, if it is newer than another one.

    All processes call this.

    Args:
      config: of the run that is resumed.
      content: the whole config, resolved.
      run: the run, locked.
      checkpoint: the last one of its own folder; None: it has none yet.
      team: the processes of the run.
      say: is called with one line about a newer checkpoint that is not taken.
    """
    if config.fast_folder is None:
        return None
    start = "training from the start" if checkpoint is None else f"continuing from step {checkpoint.step:,}"
    group = groups.of_folder("the newer tier", _folder(config, run), team)
    if group is not None:
        durable = _broadcast_lineages(run, team)
        return local_tier.newer(
            content, run, start, group, team, say, lambda step, own: _continues(step, own, durable, checkpoint)
        )
    found = team.broadcast("the newest of the fast tier", lambda: _newer(_folder(config, run), run, checkpoint, say))
    if not found:
        return None
    place = Path(found)
    if not all(team.all_gather("the fast tier can be read", storage.is_checkpoint(place))):
        if team.is_first:
            say(f"warning: not every process can read {place}; {start}")
        return None
    return Checkpoint(place, trusted=True)


def _folder(config: CheckpointConfig, run: SavedRun) -> Path:
    assert config.fast_folder is not None
    return Path(config.fast_folder).expanduser().absolute() / run.id


def _newer(folder: Path, run: SavedRun, checkpoint: Checkpoint | None, say: Callable[[str], object]) -> str:
    """Returns the newest whole checkpoint in a fast folder that continues the run's history; empty: there is none."""
    lineages = storage.lineages(folder) if folder.is_dir() else {}
    for step in sorted(lineages, reverse=True):
        if not _continues(step, lineages[step], storage.lineages(run.folder), checkpoint):
            continue
        place = storage.place(folder, step)
        try:
            candidate = Checkpoint(place)
            runs.check_run(candidate, run)
            if slices.RECORD in candidate.about:
                raise DamagedError(f"{place} has only what one machine of several needed")
        except DamagedError as error:
            say(f"warning: {error}; it is skipped")
            continue
        return str(place)
    return ""


def _broadcast_lineages(run: SavedRun, team: Team) -> dict[int, Lineage]:
    """Returns the lineages of the checkpoints in a run's own folder, which process 0 lists."""
    listed = team.broadcast("the lineages of the run", lambda: list(storage.lineages(run.folder).items()))
    lineages: dict[int, Lineage] = {}
    for step, pairs in listed:
        lineages[step] = tuple((generation, returned_to) for generation, returned_to in pairs)
    return lineages


def _continues(step: int, own: Lineage, durable: Mapping[int, Lineage], checkpoint: Checkpoint | None) -> bool:
    """Returns whether a checkpoint of the fast tier is newer than all in the run's own folder.

    Args:
      step: of the fast checkpoint.
      own: its lineage.
      durable: the lineages in the run's own folder.
      checkpoint: the last one of the history there; None: there is none.
    """
    newest = max((index.generation(lineage) for lineage in durable.values()), default=0)
    if index.generation(own) > newest:
        # The run went back to a step of its own folder, and has saved nothing there since.
        _, returned_to = own[-1]
        return durable.get(returned_to) == own[:-1]
    if checkpoint is None:
        return own == ()
    return step > checkpoint.step and own == durable.get(checkpoint.step)
