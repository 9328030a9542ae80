"""Actions of `runner.runs`: lists and compares runs, removes checkpoints, and sends what is not in the store."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runner.checkpoint import attempts, files, runs, storage
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.files import DamagedError
from runner.cli import tables
from runner.cli.runs import compare, listing
from runner.cli.runs.listing import ListedRun
from runner.cli.runs.records import RunRecord
from runner.cli.runs.selection import Selection, age_words
from runner.config.schema import CheckpointConfig, TrackingConfig
from runner.errors import EXIT_DONE, EXIT_FAILED, ConfigError, TrackingError
from runner.host.paths import outputs_dir, project_root
from runner.host.tables import size as size_text
from runner.tracking import run_file
from runner.tracking import sync as sync_runs
from runner.tracking.location import shown, sqlite_path, tracking_uri
from runner.tracking.reason import reason
from runner.tracking.store import Store
from runner.tracking.sweeps import find, open_tracking

_NO_STORE = "none"
_PARENT_TAG = "mlflow.parentRunId"
# What was removed of a run, and when.
CLEANED_TAG = "runner.cleaned"
# Checkpoints that a cell names; a run keeps a few, and the newest matter.
_STEPS_SHOWN = 4


def open_existing(uri: str | None) -> Store | None:
    """Opens the tracking store; None if there is none, which is not created, or if `uri` is none.

    Raises:
      TrackingError: it can't be used.
    """
    if uri == _NO_STORE:
        return None
    path = sqlite_path(tracking_uri(uri, project_root()))
    if path is not None and not path.exists():
        if uri:
            raise TrackingError(f"uri={shown(uri)}: {path} does not exist; set uri=<a store> or uri=none")
        return None
    return open_tracking(TrackingConfig(uri=uri))


def listed(store: Store | None, folder: str | None) -> list[ListedRun]:
    """Returns all runs, newest first; prints a line to stderr for each that can't be read."""
    found, warnings = listing.find(store, folder_of(CheckpointConfig(folder=folder)))
    for line in warnings:
        print(f"warning: {line}", file=sys.stderr)
    return found


def show(store: Store | None, folder: str | None, selection: Selection, last: int) -> int:
    """Prints a table of the selected runs, the newest so many (0: all); returns the process's exit code."""
    selected = listing.select(listed(store, folder), selection)
    if not selected:
        is_empty = selection == Selection()
        print("no runs yet; to start one: python -m runner" if is_empty else "no runs match", file=sys.stderr)
        return EXIT_FAILED
    rows = selected[:last] if last else selected
    total = size_text(sum(run.bytes for run in selected))
    place = folder_of(CheckpointConfig(folder=folder))
    tables.show(_table(rows), f"{_counted(len(selected))}, {total} of checkpoints in {place} (*: best)")
    if len(rows) < len(selected):
        print(f"{len(selected) - len(rows):,} older runs are not shown; to list all: last=0")
    return EXIT_DONE


def _counted(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _table(listed: Sequence[ListedRun]) -> tables.Table:
    titles = ("run", "name", "status", "age", "result", "checkpoints", "size")
    rows = []
    for run in listed:
        # MLflow's ids are random, so eight characters identify a run.
        short_id = run.run[:8] if run.record is not None else run.run
        name = "" if run.name == run.run else run.name
        size = size_text(run.bytes) if run.saved else ""
        age = age_words(run.seconds_ago)
        rows.append((short_id, name, run.status, age, run.result, _steps(run), size))
    return tables.Table(titles, tuple(rows), frozenset({titles.index("age"), titles.index("size")}))


def _steps(run: ListedRun) -> str:
    """Returns the steps of a run's last checkpoints as a cell, `*` at the best one."""
    if run.saved is None:
        return ""
    best_step = None
    with suppress(DamagedError):
        record = storage.read_best(run.saved.folder)
        if record:
            best_step = record.step
    texts = [f"{step}*" if step == best_step else str(step) for step in run.steps[-_STEPS_SHOWN:]]
    text = ", ".join(texts)
    return f"... {text}" if len(run.steps) > _STEPS_SHOWN else text


def compare_runs(
    store: Store | None, folder: str | None, selection: Selection, sweep: str | None, last: int, out: Path | None
) -> int:
    """Compares the runs that match, see `runner.cli.runs.compare`; returns the process's exit code.

    Where neither runs nor a sweep are named, only the last so many are compared; 0: all.
    """
    records: list[RunRecord] = []
    if store is not None:
        parent = find(store, sweep, []).info.run_id if sweep else None
        for run in listing.select(listed(store, folder), selection):
            if run.record is not None and parent in (None, run.record.tags.get(_PARENT_TAG)):
                records.insert(0, run.record)
    if not (selection.runs or sweep):
        records = records[-last:]
    if store is None or not records:
        print("no runs match", file=sys.stderr)
        return EXIT_FAILED
    compare.compare(records, store, out)
    return EXIT_DONE


def clean(store: Store | None, folder: str | None, selection: Selection, *, confirmed: bool) -> int:
    """Removes the checkpoints of the selected runs or, unless confirmed, prints which these are.

    Nothing that a run did not write is removed, and nothing of a run that is running.

    Raises:
      ConfigError: the selection has no filter.
    """
    if selection == Selection():
        raise ConfigError("clean needs a filter: older=30d, keep=5, status=failed,killed or run=<id>")
    everything = listed(store, folder)
    removable = []
    for run in listing.select(everything, selection):
        if run.saved is not None and run.status == "RUNNING":
            print(f"skipped: {run.run} is running")
        elif run.saved is not None:
            removable.append(run)
    if not removable:
        print("nothing to remove")
        return EXIT_DONE
    summary = _summary(len(removable), sum(run.bytes for run in removable))
    tables.show(_table(removable), summary if confirmed else f"would remove {summary}")
    cleaned = {run.run for run in removable}
    for run in everything:
        if run.origin.partition("@")[0] in cleaned and run.run not in cleaned:
            own = "has checkpoints of its own" if run.saved else "has no checkpoint of its own"
            print(f"note: run {run.run} ({run.name}) branches from {run.origin}, and {own}")
    if confirmed:
        return _remove_all(removable, store)
    print("nothing removed; the runs in the store would stay; to remove: add yes=true")
    return EXIT_DONE


def _summary(count: int, size: int) -> str:
    return f"checkpoints of {_counted(count)}, {size_text(size)}"


def _remove_all(removable: Sequence[ListedRun], store: Store | None) -> int:
    """Removes the checkpoints of runs, and says so in the store; returns the process's exit code."""
    freed = 0
    count = 0
    for run in removable:
        try:
            steps, size = _remove(run)
            freed += size
            if store is not None and run.record is not None and steps:
                _record(store, run, steps, size)
            count += 1
        # The other runs are cleaned all the same.
        except (ConfigError, OSError, TrackingError) as error:
            print(f"error: could not clean run {run.run}: {error}", file=sys.stderr)
    print(f"removed: {_summary(count, freed)}")
    return EXIT_DONE if count == len(removable) else EXIT_FAILED


def _remove(run: ListedRun) -> tuple[list[int], int]:
    """Removes a run's checkpoints and the record of them; returns their steps, and their size in bytes.

    Raises:
      ConfigError: its process is still running.
      OSError: the folder can't be written.
    """
    assert run.saved is not None
    folder = run.saved.folder
    steps: list[int] = []
    total = 0
    is_whole = True
    with runs.locked("run", run.saved):
        # Checked while the lock is held, so that no process can resume the run meanwhile.
        runs.check_not_running("run", run.saved)
        # Before the checkpoints, so that no record ever names one that is gone.
        storage.forget_best(folder)
        for step in storage.steps(folder):
            size = storage.size(folder, step)
            if storage.remove(folder, step):
                steps.append(step)
                total += size
            else:
                print(f"skipped: {storage.place(folder, step)} has no valid manifest")
                is_whole = False
        storage.clean(folder)
    # The run's record stays as long as one of its checkpoints does.
    if is_whole:
        for name in (runs.RECORD, runs.LOCK, *attempts.names(folder)):
            files.remove(folder / name)
        files.remove_empty(folder)
    return steps, total


def _record(store: Store, run: ListedRun, steps: Sequence[int], size: int) -> None:
    try:
        now = time.strftime("%Y-%m-%d %H:%M")
        text = f"{now}: checkpoints of steps {', '.join(map(str, steps))}, {size:,} bytes"
        store.client.set_tag(run.run, CLEANED_TAG, text)
    # MLflow, SQLAlchemy, requests and drivers share no base class.
    except Exception as error:
        problem = f"its checkpoints are removed, but the store could not record it: {reason(error)}"
        raise TrackingError(problem) from error


def sync(store: Store | None, folder: str | None) -> int:
    """Sends what runs could not send to their tracking server, from the files in their folders, or all outputs."""
    place = Path(folder) if folder else outputs_dir()
    unsent = [path for path in sorted(place.rglob(run_file.PATTERN)) if run_file.is_unsent(path)]
    if store is None or not unsent:
        print(f"nothing to send in {place}")
        return EXIT_DONE
    code = EXIT_DONE
    for path in unsent:
        try:
            if sync_runs.send(store, path, print) is None:
                print(f"skipped: {path} (its process still runs, or its store is another one: set uri=<its store>)")
        except (TrackingError, OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            code = EXIT_FAILED
    return code
