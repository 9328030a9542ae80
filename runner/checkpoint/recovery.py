"""What connects a training run with its record: the metrics that it has logged already, and where it saves."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from runner.checkpoint import attempts, runs
from runner.checkpoint.arguments import NAME, folder_of, recorded_overrides
from runner.checkpoint.attempts import Journal
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.resume import Previous
from runner.checkpoint.runs import SavedRun
from runner.cluster import restarts, slurm
from runner.cluster.team import current
from runner.config.schema import CheckpointConfig
from runner.engine import registry
from runner.errors import in_one_line
from runner.host import outputs
from runner.host.libraries import installed
from runner.host.stores.urls import ObjectPath, place
from runner.tracking import Tracker

_LIBRARIES = ("runner", *registry.distributions(), "numpy")


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

        `repeats_steps`: the run trains steps again that it has logged. `continues`: an earlier attempt may have logged
        points without a checkpoint.
        """
        self._tracker = tracker
        self._stored: dict[str, dict[int, float]] = {}
        # Up to this step, a logged point may be of a history that the run has left.
        self._last_repeated = 0
        if checkpoint is not None or continues:
            self._stored = tracker.logged()
        if checkpoint is not None:
            restores = checkpoint.history().restores
            self._last_repeated = max((restore.bad for restore in restores), default=0)
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
        return step in stored and (step > self._last_repeated or stored[step] == value)

    def forget(self, step: int) -> None:
        """Treats points after a step as not logged, because the run trains these steps again."""
        for key, points in self._stored.items():
            self._stored[key] = {at: value for at, value in points.items() if at <= step}

    def log_changed(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values that differ from the last point of their metric: metrics that depend on the config only."""
        changed: dict[str, float] = {}
        for key, value in values.items():
            points = self._stored.get(key)
            if not points or points[max(points)] != value:
                changed[key] = value
        self.log(step, changed)


def begin_attempt(
    config: CheckpointConfig,
    name: str | None,
    mesh: str,
    tracker: Tracker,
    folder: Path,
    previous: Previous | None,
    locks: ExitStack,
) -> tuple[SavedRun, Journal | None]:
    """Records the run and this process in its `run.json`, and begins the journal of the attempt, which process 0 has.

    `mesh` are its axes and sizes in words, and `folder` is the run's own. `locks` gets a lock on a new run. As it is
    closed, after the run's tracker, it ends the run's record, and the journal with the reason that ends the command.

    Raises:
      ConfigError: another process has begun an attempt at the same time.
    """
    start = 0 if previous is None else previous.checkpoint.step
    journals: list[Journal] = []

    def register() -> list[Any]:
        lasting: dict[str, Any] = {}
        own_name = name
        resumed = None if previous is None or previous.branches else previous.run
        if resumed is not None:
            # A copied folder keeps its name, and a copied run stays one of its tracking store.
            root = resumed.folder.parent
            run_id = resumed.id
            is_tracked = resumed.tracking_id is not None
            own_name = resumed.folder.name
            lasting = {key: resumed.record[key] for key in ("origin", NAME) if key in resumed.record}
            if previous is not None and previous.repeats_steps:
                lasting[runs.WENT_BACK] = True
        else:
            root = folder_of(config)
            is_tracked = tracker.run_id is not None
            if previous is not None:
                lasting["origin"] = f"{previous.run.id}@{start}"
            if name is not None:
                # Locked since it was looked for.
                run_id = tracker.run_id or name
                lasting[NAME] = name
            else:
                run_id = tracker.run_id or runs.free_name(root, folder.name)
                # Locked before it can be found.
                locks.enter_context(runs.locked("trainer.checkpoint.folder", SavedRun(root / run_id, {"run": root})))
        own_folder = root / (own_name or run_id)
        if isinstance(root, ObjectPath) and own_name is not None:
            # A store has no locks: another process may have begun the run since it was looked for.
            there = runs.begun(NAME, own_folder)
            if there is not None and (resumed is None or there.record["process"] != resumed.record["process"]):
                runs.check_not_running(NAME, there)
        # Before the record: of two processes only one begins the attempt, and the other must leave the record alone.
        journal = attempts.begin(own_folder, start, restarts.earlier_end(), mesh)
        journals.append(journal)
        # A lost process ends this one from another thread, without the stack.
        current().on_end(lambda reason, _: journal.end(reason))
        # `push` and not `callback`, because such a function gets the exception that ends the attempt.
        locks.push(partial(_end_journal, journal))
        run = runs.register(
            root,
            run_id,
            tracked=is_tracked,
            overrides=recorded_overrides(),
            name=own_name,
            job=slurm.job(),
            lasting=lasting,
        )
        locks.push(partial(_end_run, run))
        return [str(run.folder), dict(run.record)]

    run_folder, record = current().broadcast("the run's checkpoints", register)
    return SavedRun(place(run_folder), record), journals[0] if journals else None


def _end_run(run: SavedRun, kind: type[BaseException] | None, *_: object) -> None:
    """Records that the run has ended, and that it finished unless an exception ends it."""
    try:
        runs.end(run, finished=kind is None)
    except OSError as error:  # others can see that its process is gone
        outputs.warn(f"could not record the end of the run in {run.folder}: {error}")


def _end_journal(journal: Journal, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
    why = attempts.FINISHED
    if kind is not None:
        why = in_one_line(str(error)) or kind.__name__
    journal.end(why)


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that compute."""
    return {"python": platform.python_version(), **installed(_LIBRARIES)}
