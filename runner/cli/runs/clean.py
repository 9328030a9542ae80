"""Removes checkpoints, and nothing that a run did not write. Those of a run that is running stay."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from runner.checkpoint import (
    attempts,
    index,
    runs,
    storage,
)
from runner.cli.runs.listing import ListedRun
from runner.errors import EXIT_DONE, EXIT_FAILED, ConfigError, TrackingError
from runner.host.tables import size as size_text
from runner.tracking.reason import reason
from runner.tracking.store import Store

# What was removed of a run, and when.
CLEANED_TAG = "runner.cleaned"


def notes(removable: Sequence[ListedRun], listed: Sequence[ListedRun]) -> list[str]:
    """Returns one line per run of the list that branches from a checkpoint to be removed."""
    cleaned = {run.run for run in removable}
    lines = []
    for run in listed:
        origin = run.origin.partition("@")[0]
        if origin in cleaned and run.run not in cleaned:
            own = "has checkpoints of its own" if run.saved else "has no checkpoint of its own"
            lines.append(f"run {run.run} ({run.name}) branches from {run.origin}, and {own}")
    return lines


def remove_all(removable: Sequence[ListedRun], store: Store | None) -> int:
    """Removes the checkpoints of runs, and says so in the store; returns the process's exit code."""
    freed = 0
    count = 0
    for run in removable:
        try:
            steps, size, skipped = _remove(run)
            freed += size
            for line in skipped:
                print(f"skipped: {line}")
            if store is not None and run.record is not None and steps:
                _record(store, run, steps, size)
            count += 1
        # The other runs are cleaned all the same.
        except (ConfigError, OSError, TrackingError) as error:
            print(f"error: could not clean run {run.run}: {error}", file=sys.stderr)
    print(f"removed: {summary(count, freed)}")
    return EXIT_DONE if count == len(removable) else EXIT_FAILED


def summary(count: int, size: int) -> str:
    """Returns what is removed, in words."""
    return f"checkpoints of {counted(count)}, {size_text(size)}"


def counted(count: int) -> str:
    """Returns a number of runs in words."""
    return "1 run" if count == 1 else f"{count:,} runs"


def _remove(run: ListedRun) -> tuple[list[int], int, list[str]]:
    """Removes a run's checkpoints and the record of them.

    Returns:
      The steps of the checkpoints, their size in bytes, and one line for each that stays.

    Raises:
      ConfigError: its process is still running.
      OSError: the folder can't be written.
    """
    assert run.saved is not None
    folder = run.saved.folder
    steps: list[int] = []
    total = 0
    skipped: list[str] = []
    with runs.locked("run", run.saved):
        # Checked while the lock is held, so that no process can resume the run meanwhile.
        runs.check_not_running("run", run.saved)
        # Before the checkpoints, so that no record ever names one that is gone.
        index.forget_best(folder)
        for step in storage.steps(folder):
            size = storage.size(folder, step)
            if storage.remove(folder, step):
                steps.append(step)
                total += size
            else:
                skipped.append(f"{storage.place(folder, step)} has no valid manifest")
        storage.clean(folder)
    # The run's record stays as long as one of its checkpoints does.
    if not skipped:
        storage.remove_records(folder, [runs.RECORD, runs.LOCK, *attempts.names(folder)])
    return steps, total, skipped


def _record(store: Store, run: ListedRun, steps: Sequence[int], size: int) -> None:
    try:
        now = time.strftime("%Y-%m-%d %H:%M")
        text = f"{now}: checkpoints of steps {', '.join(map(str, steps))}, {size:,} bytes"
        store.client.set_tag(run.run, CLEANED_TAG, text)
    # MLflow, SQLAlchemy, requests and drivers share no base class.
    except Exception as error:
        raise TrackingError(
            f"its checkpoints are removed, but the store could not record it: {reason(error)}"
        ) from error
