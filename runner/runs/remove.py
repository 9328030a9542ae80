"""Removes checkpoints, and nothing that a run did not write.

Those of a run that is running or kept stay.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import TrackingError
from runner.runs.listing import ListedRun
from runner.tracking.reason import reason
from runner.tracking.store import Store
from runner.training.checkpoint import attempts, index, runs, storage

# What was removed of a run, and when.
CLEANED_TAG = "runner.cleaned"


@dataclass(frozen=True)
class Removed:
    """The removed parts of a run.

    Attributes:
      steps: steps of the checkpoints.
      bytes: their size.
      skipped: what stays and why, in lines.
    """

    steps: tuple[int, ...] = ()
    bytes: int = 0
    skipped: tuple[str, ...] = ()


def split(selected: Sequence[ListedRun], *, are_named: bool) -> tuple[list[ListedRun], list[str]]:
    """Returns the runs that can be cleaned, and one line for each that can't be.

    Args:
      selected: the runs that match the command line's filters.
      are_named: the command line names each of them.
    """
    removable = []
    skipped = list[str]()
    foreign = list[str]()
    for run in selected:
        title = run.run
        if run.name != run.run:
            title = f"{run.run} ({run.name})"
        if run.saved is None:
            continue
        if run.is_kept:
            skipped.append(f"{title} is kept; to release it: python -m runner.runs release run={run.run}")
        elif run.status == "RUNNING":
            skipped.append(f"{title} is running")
        elif run.is_foreign and not are_named:
            # Only its own store has the tag of a run that must be kept.
            foreign.append(run.run[:8])
        else:
            removable.append(run)
    if foreign:
        skipped.append(
            f"{', '.join(foreign)}: recorded in another store, which may keep them; set uri=<that store>, or name "
            "each with run="
        )
    return removable, skipped


def warnings(removable: Sequence[ListedRun], listed: Sequence[ListedRun]) -> list[str]:
    """Returns one line per run that branches from a checkpoint to be removed.

    Args:
      removable: the runs to clean.
      listed: all runs.
    """
    cleaned = {run.run for run in removable}
    lines = []
    for run in listed:
        origin = run.origin.partition("@")[0]
        if origin in cleaned and run.run not in cleaned:
            own = "has no checkpoint of its own"
            if run.saved:
                own = "has checkpoints of its own"
            lines.append(f"run {run.run} ({run.name}) branches from {run.origin}, and {own}")
    return lines


def remove(run: ListedRun) -> Removed:
    """Removes a run's checkpoints and the record of them.

    Raises:
      ConfigError: its process is still running.
      OSError: the folder can't be written.
    """
    if run.saved is None:
        return Removed()
    folder = run.saved.folder
    with runs.locked("run", run.saved):
        # Checked while the lock is held, so that no process can resume the run meanwhile.
        runs.check_not_running("run", run.saved)
        # Before the checkpoints, so that no record ever names one that is gone.
        index.forget_best(folder)
        steps = list[int]()
        total = 0
        skipped = list[str]()
        for step in storage.steps(folder):
            checkpoint = storage.place(folder, step)
            checkpoint_size = storage.size(folder, step)
            if storage.remove(folder, step):
                steps.append(step)
                total += checkpoint_size
            else:
                skipped.append(f"{checkpoint} has files that no run wrote")
        storage.clean(folder)
    # The run's record stays as long as one of its checkpoints does.
    if not skipped:
        storage.remove_records(folder, [runs.RECORD, runs.LOCK, *attempts.names(folder)])
    return Removed(tuple(steps), total, tuple(skipped))


def record(store: Store, run: ListedRun, removed: Removed) -> None:
    """Records on a run in the store what was removed.

    Raises:
      TrackingError: the store failed.
    """
    try:
        if removed.steps:
            now = time.strftime("%Y-%m-%d %H:%M")
            steps = ", ".join(map(str, removed.steps))
            store.client.set_tag(run.run, CLEANED_TAG, f"{now}: checkpoints of steps {steps}, {removed.bytes:,} bytes")
    # MLflow, SQLAlchemy, requests and drivers share no base class.
    except Exception as error:
        raise TrackingError(
            f"its checkpoints are removed, but the store could not record it: {reason(error)}"
        ) from error
