"""Removes checkpoints: never those of a run that runs or that a person keeps, and nothing that is not ours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import TrackingError
from runner.host.folders import remove_empty, remove_files
from runner.runs.found import Found, size
from runner.tracking.reason import reason
from runner.tracking.store import Store
from runner.training.checkpoint import index, runs, storage

CLEANED_TAG = "runner.cleaned"  # what was removed of a run, and when


@dataclass(frozen=True)
class Removed:
    """What was removed of a run.

    Attributes:
      steps: of the checkpoints.
      bytes: that they took.
      left: what stays, and why, in lines.
    """

    steps: tuple[int, ...] = ()
    bytes: int = 0
    left: tuple[str, ...] = ()


def split(meant: Sequence[Found], *, named: bool, records: bool) -> tuple[list[Found], list[str]]:
    """Returns the runs that can be cleaned, and in lines those that can't be and why.

    Args:
      meant: runs that the command line means.
      named: whether the command line names each.
      records: whether runs without checkpoints are meant too, to be deleted in the store.
    """
    taken = []
    left = list[str]()
    foreign = list[Found]()
    for one in meant:
        title = f"{one.run} ({one.name})" if one.name != one.run else one.run
        if one.saved is None and not (records and one.stored and one.status != "DELETED"):
            continue
        if one.kept:
            left.append(f"{title} is kept; python -m runner.runs release run={one.run} gives it up")
        elif one.status == "RUNNING":
            left.append(f"{title} is running")
        elif one.foreign and not named:
            foreign.append(one)
        else:
            taken.append(one)
    if foreign:
        left.append(
            f"{', '.join(one.run[:8] for one in foreign)}: recorded in another store, which may keep them; set "
            "uri=<that store>, or name each by run="
        )
    return taken, left


def cautions(removals: Sequence[Found], everything: Sequence[Found]) -> list[str]:
    """Returns in lines what a person should know before checkpoints go: other runs branch from them."""
    gone = {one.run for one in removals if one.saved is not None}
    lines = []
    for other in everything:
        origin = other.origin.partition("@")[0]
        if origin in gone and other.run not in gone:
            own = "has checkpoints of its own" if other.saved else "has no checkpoint of its own"
            lines.append(f"run {other.run} ({other.name}) branches from {other.origin}, and {own}")
    return lines


def remove(one: Found) -> Removed:
    """Removes a run's checkpoints, and what says that it has some.

    Raises:
      ConfigError: its process is still there.
      OSError: the folder can't be written.
    """
    if one.saved is None:
        return Removed()
    folder = one.saved.folder
    with runs.locked("run", one.saved):
        runs.check_not_running("run", one.saved)
        index.forget_best(folder)
        gone = list[int]()
        freed = 0
        left = list[str]()
        for step in storage.steps(folder):
            place = storage.place(folder, step)
            taken = size(place)
            if storage.remove(folder, step):
                gone.append(step)
                freed += taken
            else:
                left.append(f"{place} is not as a run wrote it")
        storage.clean(folder)
    if not left:
        remove_files(folder, [runs.RECORD, runs.LOCK])
        remove_empty([folder])
    return Removed(tuple(gone), freed, tuple(left))


def note(store: Store, one: Found, done: Removed, *, delete: bool) -> None:
    """Notes on a run in the store what was removed of it, or deletes it there.

    Raises:
      TrackingError: the store does not take it.
    """
    steps = ", ".join(map(str, done.steps)) or "none"
    try:
        if done.steps:
            day = time.strftime("%Y-%m-%d %H:%M")
            store.client.set_tag(one.run, CLEANED_TAG, f"{day}: checkpoints of steps {steps}, {done.bytes:,} bytes")
        if delete and one.status != "DELETED":
            store.client.delete_run(one.run)
    except Exception as error:  # MLflow, SQLAlchemy, requests and drivers share no base class
        raise TrackingError(f"its checkpoints are removed, and the store does not note it: {reason(error)}") from error
