"""Actions of `runner.runs`: lists and compares runs, removes checkpoints, and sends what is not in the store."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from runner.checkpoint import attempts, files, runs, storage
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.runs import SavedRun
from runner.cli import tables
from runner.cli.runs import compare, listing
from runner.cli.runs.listing import ListedRun
from runner.cli.runs.records import RunRecord
from runner.cli.runs.request import Request
from runner.config.schema import TrackingConfig
from runner.console import size as size_text
from runner.errors import EXIT_DONE, EXIT_FAILED, ConfigError, TrackingError
from runner.host.paths import outputs_dir, project_root
from runner.tracking import run_file, send
from runner.tracking.location import shown, sqlite_path, tracking_uri
from runner.tracking.store import Store, find_sweep, open_tracking

_NO_STORE = "none"
_PARENT_TAG = "mlflow.parentRunId"
# Checkpoints that a cell names; a run keeps a few, and the newest matter.
_STEPS_SHOWN = 4


def run(request: Request) -> int:
    """Does what a command line asks for; returns the process's exit code.

    Raises:
      ConfigError: a run or sweep that it names does not exist, or `clean` has no filter.
      TrackingError: the store can't be used.
    """
    store = open_existing(request.uri)
    if request.action == "compare":
        return _compare(store, request)
    if request.action == "clean":
        return _clean(store, request)
    if request.action == "sync":
        return _sync(store, request.folder)
    return _show(store, request)


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


def _selected(store: Store | None, request: Request) -> list[ListedRun]:
    """Returns the runs that are asked for, newest first."""
    return listing.select(listing.find(store, folder_of(request.folder)), request)


def _show(store: Store | None, request: Request) -> int:
    selected = _selected(store, request)
    if not selected:
        print("no runs match; to start one: python -m runner", file=sys.stderr)
        return EXIT_FAILED
    rows = selected[: request.last or None]
    place = folder_of(request.folder)
    tables.show(_table(rows), f"{_summary(selected)} in {place} (*: best)")
    if len(rows) < len(selected):
        print(f"{len(selected) - len(rows):,} older runs are not shown; to list all: last=0")
    return EXIT_DONE


def _summary(listed: Sequence[ListedRun]) -> str:
    count = "1 run" if len(listed) == 1 else f"{len(listed):,} runs"
    return f"checkpoints of {count}, {size_text(sum(run.bytes for run in listed))}"


def _table(listed: Sequence[ListedRun]) -> tables.Table:
    titles = ("run", "name", "status", "ended", "result", "checkpoints", "size")
    rows = []
    for run in listed:
        short_id = run.run
        name = ""
        if run.record is not None:
            # MLflow's ids are random, so eight characters identify a run.
            short_id = run.run[:8]
            name = run.name
        ended = ""
        if run.status != "RUNNING":
            ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.ended))
        rows.append((short_id, name, run.status, ended, run.result, _steps(run), size_text(run.bytes)))
    return tables.Table(titles, tuple(rows), frozenset({titles.index("size")}))


def _steps(run: ListedRun) -> str:
    """Returns the steps of a run's last checkpoints as a cell, `*` at the best one."""
    if run.saved is None:
        return ""
    best = storage.read_best(run.saved.folder)
    texts = []
    for step in run.steps[-_STEPS_SHOWN:]:
        is_best = best is not None and step == best.step
        texts.append(f"{step}*" if is_best else f"{step}")
    if len(run.steps) > _STEPS_SHOWN:
        texts.insert(0, "...")
    return ", ".join(texts)


def _compare(store: Store | None, request: Request) -> int:
    """Compares the runs that match; where neither runs nor a sweep are named, only the newest."""
    records: list[RunRecord] = []
    if store is not None:
        parent = find_sweep(store, request.sweep).info.run_id if request.sweep else None
        for run in _selected(store, request):
            if run.record is not None and parent in (None, run.record.tags.get(_PARENT_TAG)):
                records.insert(0, run.record)
    if not (request.run or request.sweep):
        records = records[-request.last :]
    if store is None or not records:
        print("no runs match", file=sys.stderr)
        return EXIT_FAILED
    compare.compare(records, store, None if request.out is None else Path(request.out))
    return EXIT_DONE


def _clean(store: Store | None, request: Request) -> int:
    """Removes the checkpoints of the selected runs or, unless confirmed, prints which these are.

    Nothing that a run did not write is removed, and nothing of a run that is running.
    """
    if not request.has_filter:
        raise ConfigError("clean needs a filter: older=30d, keep=5, status=failed,killed or run=<id>")
    removable: dict[str, SavedRun] = {}
    listed = []
    for run in _selected(store, request):
        if run.saved is not None and run.status == "RUNNING":
            print(f"skipped: {run.run} is running")
        elif run.saved is not None:
            removable[run.run] = run.saved
            listed.append(run)
    if not removable:
        print("nothing to remove")
        return EXIT_DONE
    if not request.yes:
        tables.show(_table(listed), f"would remove {_summary(listed)}")
        print("nothing removed; the runs in the store would stay; to remove: add yes=true")
        return EXIT_DONE
    freed = 0
    count = 0
    for name, saved in removable.items():
        try:
            freed += _remove(saved)
            count += 1
        # The other runs are cleaned all the same.
        except (ConfigError, OSError) as error:
            print(f"error: could not clean run {name}: {error}", file=sys.stderr)
    print(f"removed: checkpoints of {count:,} runs, {size_text(freed)}")
    return EXIT_DONE if count == len(removable) else EXIT_FAILED


def _remove(saved: SavedRun) -> int:
    """Removes a run's checkpoints and the record of them; returns their size in bytes.

    Raises:
      ConfigError: its process is still running.
      OSError: the folder can't be written.
    """
    folder = saved.folder
    total = 0
    is_whole = True
    with runs.locked("run", saved):
        # Checked while the lock is held, so that no process can resume the run meanwhile.
        runs.ended("run", saved)
        for step in storage.steps(folder):
            size = storage.size(folder, step)
            if storage.remove(folder, step):
                total += size
            else:
                print(f"skipped: {storage.place(folder, step)} has no valid manifest")
                is_whole = False
        storage.clean(folder)
    # The run's record stays as long as one of its checkpoints does.
    if is_whole:
        for name in files.names(folder):
            if name in (runs.RECORD, runs.LOCK) or name.startswith(attempts.CLAIM):
                files.remove(folder / name)
        files.remove_empty(folder)
    return total


def _sync(store: Store | None, folder: str | None) -> int:
    """Sends what runs could not send to their tracking server, from the files in their folders, or all outputs."""
    place = Path(folder) if folder else outputs_dir()
    unsent = [path for path in sorted(place.rglob(run_file.PATTERN)) if run_file.is_unsent(path)]
    if store is None or not unsent:
        print(f"nothing to send in {place}")
        return EXIT_DONE
    code = EXIT_DONE
    for path in unsent:
        try:
            if send.sync(store, path, print) is None:
                print(f"skipped: {path} (its process still runs, or its store is another one: set uri=<its store>)")
        except (TrackingError, OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            code = EXIT_FAILED
    return code
