"""What connects a training run with its record: the metrics that it has logged already, and where it saves."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runner.checkpoint import (
    attempts,
    runs,
)
from runner.checkpoint.arguments import (
    NAME,
    folder_of,
    recorded_overrides,
)
from runner.checkpoint.attempts import Journal
from runner.checkpoint.manifest import (
    CONSTANTS,
    DIGEST,
    ENCODING,
)
from runner.checkpoint.metric_history import from_arrays
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.resume import Previous
from runner.checkpoint.runs import SavedRun
from runner.checkpoint.saver import (
    CheckpointSaver,
    Saver,
    take_state,
)
from runner.checkpoint.stopping import Objective
from runner.cluster import (
    lifecycle,
    restarts,
    slurm,
)
from runner.cluster.team import current
from runner.config.schema import MeshConfig, RunConfig
from runner.data.base import Dataset
from runner.engine import registry
from runner.engine.base import Engine
from runner.errors import in_one_line
from runner.host.outputs import warn
from runner.host.stores.urls import ObjectPath, Place, place
from runner.host.versions import installed
from runner.layout import mesh
from runner.tracking import Tracker

_LIBRARIES = ("runner", *registry.distributions(), "numpy")
_TAG = "runner.checkpoints"
_ORIGIN = "runner.branched_from"

# The config groups that a plan is computed from.
_PLANNED = ("engine", "mesh", "layout", "model", "optimizer", "dataset", "task")


class NewPoints:
    """Logs only the points that a run does not have yet.

    A resumed run computes the points after its last checkpoint again, and its history before that is logged once more,
    because some of it may have been on its way when the process died. A run that went back to a checkpoint, after a
    NaN or Inf loss or because the user resumed from an earlier step, has points of steps that it trains again: there,
    a point counts as logged only if its value is the same. So has a run that was lost before its first checkpoint.
    """

    def __init__(
        self, tracker: Tracker, checkpoint: Checkpoint | None, *, repeats_steps: bool = False, continues: bool = False
    ) -> None:
        """Reads the points that the run has.

        Args:
          tracker: of the run.
          checkpoint: that the run continues from; None: a new run.
          repeats_steps: whether the run trains steps again that it has logged.
          continues: whether an earlier attempt of the run may have logged points without a checkpoint.
        """
        self._tracker = tracker
        self._checkpoint = checkpoint
        self._stored: dict[str, dict[int, float]] = {}
        # Up to this step, a logged point may be of a history that the run has left.
        self._last_repeated = 0
        if checkpoint is not None or continues:
            self._stored = tracker.logged()
        if checkpoint is not None:
            for restore in from_arrays(checkpoint.history()).restores:
                self._last_repeated = max(self._last_repeated, restore.bad)
        # Without a checkpoint the run trains all its steps again, those that the earlier attempt has logged too.
        if repeats_steps or (continues and checkpoint is None):
            for points in self._stored.values():
                self._last_repeated = max(self._last_repeated, max(points, default=0))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values that the run has no point of at this step."""
        new = {key: value for key, value in values.items() if not self._is_stored(step, key, value)}
        if new:
            self._tracker.log_metrics(step, new)

    def _is_stored(self, step: int, key: str, value: float) -> bool:
        stored = self._stored.get(key, {})
        if step not in stored:
            return False
        return step > self._last_repeated or stored[step] == value

    def forget(self, step: int) -> None:
        """Treats points after a step as not logged, because the run trains these steps again."""
        kept: dict[str, dict[int, float]] = {}
        for key, points in self._stored.items():
            kept[key] = {at: value for at, value in points.items() if at <= step}
        self._stored = kept

    def log_changed(self, step: int, values: Mapping[str, float], content: Mapping[str, Any]) -> None:
        """Logs the values that differ from the last point of their metric.

        Args:
          step: training steps done.
          values: metrics that depend on the config only.
          content: the config, resolved.
        """
        lost: dict[str, float] = {}
        changed: dict[str, float] = {}
        for key, value in values.items():
            points = self._stored.get(key)
            if not points:
                lost[key] = value
            elif points[max(points)] != value:
                changed[key] = value
        # Points that are missing altogether were on their way when the process died. If the config still gives the
        # same plan, they belong to the beginning of the run.
        self.log(0 if self._has_same_plan(content) else step, lost)
        self.log(step, changed)

    def _has_same_plan(self, content: Mapping[str, Any]) -> bool:
        if self._checkpoint is None:
            return True
        before = self._checkpoint.about["config"]
        return all(before.get(group) == content.get(group) for group in _PLANNED)


@contextmanager
def saving(
    config: RunConfig,
    content: Mapping[str, Any],
    engine: Engine,
    tracker: Tracker,
    folder: Path,
    previous: Previous | None,
    recorded: ExitStack,
    locks: ExitStack,
    *,
    goal: Objective | None,
    data: Dataset,
    constants: Mapping[str, Any],
    begun: BegunAttempt | None = None,
) -> Iterator[tuple[Saver, Journal]]:
    """Yields the saver of a run, and the journal of this attempt.

    Args:
      config: checked.
      content: the config, resolved.
      engine: built.
      tracker: of the run; gets a tag with the folder of its checkpoints.
      folder: the run's own.
      previous: the run that this one resumes or branches from.
      recorded: closed when the tracker has the run as finished. A run that is killed before that can be resumed, to
        record what it has not recorded.
      locks: gets a lock on a new run, so that no other process resumes it.
      goal: the metric that the best checkpoint is the best by; None: no best checkpoint is kept.
      data: the training data, whose encoding evaluations of other data need.
      constants: what the task computed from its training data, which these evaluations need too.
      begun: the attempt, if it has begun already, as that of a named run has.

    Raises:
      OSError: the folder is read-only or the disk is full.
    """
    options = config.trainer.checkpoint
    team = current()
    if not options.enabled:
        yield Saver(), Journal()
        return
    if begun is None:
        begun = begin_attempt(config, tracker, folder, previous, locks)
    run = begun.run
    start = 0
    tags = {_TAG: str(run.folder)}
    if previous is not None:
        start = previous.checkpoint.step
        if previous.branches:
            tags[_ORIGIN] = f"{previous.run.id}@{start}"
    tracker.set_tags(tags)

    about = {
        "run": run.id,
        # From here `runs` takes it if the file of the record is lost.
        runs.IN_CHECKPOINTS: dict(run.record),
        "config": content,
        "seed": config.trainer.seed,
        "versions": versions(),
        DIGEST: data.digest,
        ENCODING: data.encoding.to_json(),
        CONSTANTS: dict(constants),
    }
    # All processes fail alike, and process 0 says it for all.
    say = warn if team.is_first else _say_nothing
    take = take_state(engine, about)
    saver = CheckpointSaver(options, run.folder, take, say, start, goal, team)
    has_finished = False
    try:
        yield saver, begun.journal
        has_finished = True
    finally:
        saver.close()
        if team.is_first and has_finished:
            # The tracker still has to record the results. Until then the run must count as one that can be resumed.
            recorded.callback(_end, run, finished=True)
        elif team.is_first:
            _end(run, finished=False)


@dataclass(frozen=True)
class BegunAttempt:
    """A run whose record names this process, and the journal of the attempt.

    Attributes:
      run: as this process has recorded it.
      journal: of the attempt; process 0's writes a file.
    """

    run: SavedRun
    journal: Journal


def begin_attempt(
    config: RunConfig, tracker: Tracker, folder: Path, previous: Previous | None, locks: ExitStack
) -> BegunAttempt:
    """Records the run and this process in its `run.json`, and begins the journal of the attempt.

    Args:
      config: checked, with checkpoints.
      tracker: of the run.
      folder: the run's own.
      previous: the run that this one resumes or branches from.
      locks: gets a lock on a new run, and ends the journal with the reason that ends the command.

    Raises:
      ConfigError: another process has begun an attempt at the same time.
      OSError: the folder is read-only or the disk is full.
    """
    resumed = None
    lasting: dict[str, Any] = {}
    start = 0
    if previous is not None:
        start = previous.checkpoint.step
        if previous.branches:
            lasting = {"origin": f"{previous.run.id}@{start}"}
        else:
            resumed = previous.run
            lasting = {key: resumed.record[key] for key in ("origin", "kept", NAME) if key in resumed.record}
            if previous.repeats_steps:
                lasting[runs.WENT_BACK] = True
    return _registered(config, tracker, folder, resumed, lasting, locks, start)


def _begin_journal(config: MeshConfig, folder: Place, start: int, locks: ExitStack) -> Journal:
    journal = attempts.begin(folder, start, restarts.earlier_end(), mesh.describe(config.axes))
    # A lost process ends this one from another thread, without the stack.
    lifecycle.on_end(lambda reason, _: journal.end(reason))
    # `push` and not `callback`, because such a function gets the exception that ends the attempt.
    locks.push(partial(_end_journal, journal))
    return journal


def _end_journal(journal: Journal, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
    why = attempts.FINISHED
    if kind is not None:
        why = in_one_line(str(error)) or kind.__name__
    journal.end(why)


def _registered(
    config: RunConfig,
    tracker: Tracker,
    folder: Path,
    resumed: SavedRun | None,
    lasting: dict[str, Any],
    locks: ExitStack,
    start: int,
) -> BegunAttempt:
    """Begins the journal of the attempt, and records the run and this process in its `run.json`.

    Args:
      config: checked.
      tracker: of the run.
      folder: the run's own.
      resumed: the run that continues; None: a new one.
      lasting: entries of the record that stay when the run is resumed.
      locks: gets a lock on a new run, and ends the journal.
      start: training steps done.
    """
    job = slurm.job()
    journals: list[Journal] = []

    def register() -> list[Any]:
        overrides = recorded_overrides()
        if resumed is not None:
            # A copied folder keeps its name, and a copied run stays one of its tracking store.
            root = resumed.folder.parent
            run_id = resumed.id
            is_tracked = resumed.tracking_id is not None
            name: str | None = resumed.folder.name
        else:
            root = folder_of(config.trainer.checkpoint)
            is_tracked = tracker.run_id is not None
            name = config.name
            if name is not None:
                # Locked since it was looked for.
                run_id = tracker.run_id or name
                lasting[NAME] = name
            else:
                run_id = tracker.run_id or runs.free_name(root, folder.name)
                # Locked before it can be found.
                locks.enter_context(runs.locked("trainer.checkpoint.folder", SavedRun(root / run_id, {"run": root})))
        if isinstance(root, ObjectPath) and (resumed is not None or name is not None):
            # A store has no locks: another process may have begun the run since it was looked for.
            there = runs.begun(NAME, root / (name or run_id))
            if there is not None and (resumed is None or there.record["process"] != resumed.record["process"]):
                runs.check_not_running(NAME, there)
        # Before the record: of two processes only one begins the attempt, and the other must leave the record alone.
        journals.append(_begin_journal(config.mesh, root / (name or run_id), start, locks))
        run = runs.register(root, run_id, tracked=is_tracked, overrides=overrides, name=name, job=job, lasting=lasting)
        return [str(run.folder), dict(run.record)]

    run_folder, record = current().broadcast("the run's checkpoints", register)
    run = SavedRun(place(run_folder), record)
    return BegunAttempt(run, journals[0] if journals else Journal())


def _say_nothing(line: str) -> None:
    del line


def _end(run: SavedRun, *, finished: bool) -> None:
    """Records that the run has ended. A failure is only a warning: others can see that its process is gone."""
    try:
        runs.end(run, finished=finished)
    except OSError as error:
        warn(f"could not record the end of the run in {run.folder}: {error}")


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that compute."""
    return {"python": platform.python_version(), **installed(_LIBRARIES)}
