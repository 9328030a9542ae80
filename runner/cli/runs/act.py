"""Actions of `runner.runs`: lists and compares runs, removes checkpoints, and sends what is not in the store."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runner.checkpoint import attempts, files, runs, storage
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.runs import SavedRun
from runner.cli import tables
from runner.cli.runs import compare, records
from runner.cli.runs.records import RunRecord
from runner.cli.runs.request import Request
from runner.config.schema import TrackingConfig
from runner.console import size as size_text
from runner.errors import EXIT_DONE, EXIT_FAILED, ConfigError, TrackingError, passing
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
      ConfigError: a run or sweep that it names does not exist.
      TrackingError: the store can't be used.
    """
    store = open_existing(request.uri)
    if request.action == "compare":
        return _compare(store, request)
    if request.action == "sync":
        return _sync(store, request.folder)
    place = folder_of(request.folder)
    selected = records.select(records.find(store, place), request)
    if request.action == "clean":
        return _clean(selected, confirmed=request.yes)
    if not selected:
        print("no runs match; to start one: python -m runner", file=sys.stderr)
        return EXIT_FAILED
    _show(selected, f"{{}} in {place} (*: best)", request.last)
    return EXIT_DONE


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


def _show(selected: Sequence[RunRecord], heading: str, last: int = 0) -> None:
    """Prints a table of runs, of all or of the newest so many, and above it the size of all their checkpoints."""
    titles = ("run", "name", "status", "ended", "result", "checkpoints", "size")
    rows = []
    total = 0
    for record in selected:
        steps, size = _checkpoints(record.saved)
        total += size
        ended = ""
        if record.status != "RUNNING":
            ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.ended))
        result = ""
        metric = records.judged_by([record])
        if metric in record.metrics:
            result = f"{metric} {tables.cell(record.metrics[metric])}"
        # MLflow's ids are random, so eight characters identify a run.
        rows.append((record.run_id[:8], record.name, record.status, ended, result, steps, size_text(size)))
    shown_rows = rows[: last or None]
    heading = heading.format(f"checkpoints of {_count(len(rows))}, {size_text(total)}")
    tables.show(titles, shown_rows, heading, [titles.index("size")])
    if len(shown_rows) < len(rows):
        print(f"{len(rows) - len(shown_rows):,} older runs are not shown; to list all: last=0")


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs:,} runs"


def _checkpoints(saved: SavedRun | None) -> tuple[str, int]:
    """Returns the steps of a run's last checkpoints as a cell, `*` at the best one, and the bytes of all."""
    if saved is None:
        return "", 0
    steps = storage.steps(saved.folder)
    best = storage.read_best(saved.folder)
    texts = []
    for step in steps[-_STEPS_SHOWN:]:
        is_best = best is not None and step == best.step
        texts.append(f"{step}{'*' * is_best}")
    if len(steps) > _STEPS_SHOWN:
        texts.insert(0, "...")
    return ", ".join(texts), sum(storage.size(saved.folder, step) for step in steps)


def _compare(store: Store | None, request: Request) -> int:
    """Compares the runs that match; where neither runs nor a sweep are named, only the newest."""
    selected = records.select(records.tracked(store), request)
    if store is not None and request.sweep:
        parent = find_sweep(store, request.sweep).info.run_id
        selected = [record for record in selected if record.tags.get(_PARENT_TAG) == parent]
    elif not request.run:
        selected = selected[: request.last or None]
    if store is None or not selected:
        print("no runs match", file=sys.stderr)
        return EXIT_FAILED
    compare.compare(selected[::-1], store, None if request.out is None else Path(request.out))
    return EXIT_DONE


def _clean(selected: Sequence[RunRecord], *, confirmed: bool) -> int:
    """Removes the checkpoints of runs or, unless confirmed, prints which these are.

    Nothing that a run did not write is removed, and nothing of a run that is running.
    """
    removable = []
    for record in selected:
        if record.saved is not None and record.status == "RUNNING":
            print(f"skipped: {record.run_id} is running")
        elif record.saved is not None:
            removable.append(record.saved)
    if not removable:
        print("nothing to remove")
        return EXIT_DONE
    if not confirmed:
        _show([record for record in selected if record.saved in removable], "would remove {}")
        print("nothing removed; the runs in the store would stay; to remove: add yes=true")
        return EXIT_DONE
    # All at once: a look at a run that another machine has left takes half a minute.
    with ThreadPoolExecutor(len(removable)) as pool:
        looks = [pool.submit(runs.ended, "run", saved) for saved in removable]
    freed = 0
    code = EXIT_DONE
    for saved, look in zip(removable, looks, strict=True):
        try:
            freed += _remove(look.result())
        # The other runs are cleaned all the same.
        except (ConfigError, OSError) as error:
            print(f"error: could not clean run {saved.id}: {error}", file=sys.stderr)
            code = EXIT_FAILED
    print(f"removed: {size_text(freed)} of checkpoints")
    return code


def _remove(saved: SavedRun) -> int:
    """Removes the checkpoints of a run that has ended and the record of them; returns their size in bytes.

    Raises:
      ConfigError: a process has it, or has changed its record since.
      OSError: the folder can't be written.
    """
    folder = saved.folder
    total = 0
    is_whole = True
    with runs.locked("run", saved):
        # Compared while the lock is held, so that no process can resume the run meanwhile.
        if runs.read(folder).record != saved.record:
            raise passing("run", saved.id, problem="another process has changed it meanwhile", fix="try again")
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
