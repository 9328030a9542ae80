"""Actions of `runner.runs`: lists and compares runs, removes checkpoints, and sends what is not in the store."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runner import figures
from runner.checkpoint import attempts, files, runs, storage
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.runs import SavedRun
from runner.cli import tables
from runner.cli.runs.records import (
    RunRecord,
    find,
    higher_is_better,
    history,
    judged_by,
    result_columns,
    select,
    tracked,
)
from runner.cli.runs.request import Request
from runner.cluster.membership import short_keys, short_value, varied_name
from runner.config.schema import TrackingConfig
from runner.console import size as size_text
from runner.errors import EXIT_DONE, EXIT_FAILED, ConfigError, TrackingError, passing
from runner.host import folders
from runner.host.paths import outputs_dir, project_root
from runner.task import metrics
from runner.tracking import run_file, send
from runner.tracking.location import shown, sqlite_path, tracking_uri
from runner.tracking.store import Store, find_sweep, open_tracking

_NO_STORE = "none"
_PARENT_TAG = "mlflow.parentRunId"
# Checkpoints that a cell names; a run keeps a few, and the newest matter.
_STEPS_SHOWN = 4
_BATCH_SIZE = "dataset.batch_size"
_GROUPS = ("engine", "mesh", "layout", "model", "optimizer", "dataset", "task")
# Params that differ between runs of the same experiment.
_NOT_COMPARED = ("tracking.", "sweep.", "trainer.progress", "cluster.restart")


def run(request: Request) -> int:
    """Does what a command line asks for; returns the process's exit code. Raises ConfigError or TrackingError."""
    store = open_existing(request.uri)
    if request.action == "compare":
        return _compare(store, request)
    if request.action == "sync":
        return _sync(store, request.folder)
    place = folder_of(request.folder)
    selected = select(find(store, place), request)
    if request.action == "clean":
        return _clean(selected, confirmed=request.yes)
    if not selected:
        print("no runs match; to start one: python -m runner", file=sys.stderr)
        return EXIT_FAILED
    _show(selected, f"{{}} in {place} (*: best)", request.last)
    return EXIT_DONE


def open_existing(uri: str | None) -> Store | None:
    """Opens the tracking store; None if there is none, which is not created, or if `uri` is none."""
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
        metric = judged_by([record])
        if metric in record.metrics:
            result = f"{metric} {tables.cell(record.metrics[metric])}"
        # MLflow's ids are random, so eight characters identify a run.
        rows.append((record.run_id[:8], record.name, record.status, ended, result, steps, size_text(size)))
    shown_rows = rows[: last or None]
    counted = "1 run" if len(rows) == 1 else f"{len(rows):,} runs"
    heading = heading.format(f"checkpoints of {counted}, {size_text(total)}")
    tables.show(titles, shown_rows, heading, [titles.index("size")])
    if len(shown_rows) < len(rows):
        print(f"{len(rows) - len(shown_rows):,} older runs are not shown; to list all: last=0")


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
    """Prints a table of the runs that match; where neither runs nor a sweep are named, of the newest only."""
    selected = select(tracked(store), request)
    if store is not None and request.sweep:
        parent = find_sweep(store, request.sweep).info.run_id
        selected = [record for record in selected if record.tags.get(_PARENT_TAG) == parent]
    elif not request.run:
        selected = selected[: request.last or None]
    if store is None or not selected:
        print("no runs match", file=sys.stderr)
        return EXIT_FAILED
    selected = selected[::-1]
    metric = judged_by(selected)
    ranked = best_first(selected, metric)
    keys = varying(ranked)
    columns = table_of(ranked, keys, metric)
    heading = f"{len(ranked)} runs"
    if not keys:
        heading += ", all with the same config"
    first_number = list(columns).index("status") + 1
    tables.show(list(columns), list(zip(*columns.values(), strict=True)), heading, range(first_number, len(columns)))
    if request.out is not None:
        out = folders.claim("out", request.out)
        written = [tables.write(out, columns).name]
        names = list(dict.fromkeys((metric, f"{metrics.TRAIN}loss")))
        if draw_curves(out / "curves.png", store, ranked, names):
            written.append("curves.png")
        print(f"written: {', '.join(written)} in {request.out}")
    return EXIT_DONE


def best_first(records: Sequence[RunRecord], metric: str) -> list[RunRecord]:
    """Returns runs sorted by a metric; those without it, or with NaN, are last."""
    sign = -1.0 if higher_is_better(metric, records) else 1.0

    def rank(record: RunRecord) -> tuple[bool, float]:
        value = record.metrics.get(metric, math.nan)
        if math.isnan(value):
            return True, 0.0
        return False, sign * value

    return sorted(records, key=rank)


def table_of(records: Sequence[RunRecord], keys: Sequence[str], metric: str) -> dict[str, list[str]]:
    """Returns the columns of a comparison by title, with one cell per run; results are after the status."""
    columns = {"run": [record.run_id[:8] for record in records]}
    for key, title in short_keys(keys).items():
        columns[title] = list(map(short_value, _values(records, key)))
    columns["status"] = [record.status for record in records]
    return columns | result_columns(records, metric, keys)


def _values(records: Sequence[RunRecord], key: str) -> list[str]:
    return [record.params.get(key, "") for record in records]


def varying(records: Sequence[RunRecord]) -> list[str]:
    """Returns the keys in which the runs differ.

    If the runs use different options of a group (optimizer=adam, optimizer=sgd), the group is listed in place of those
    of its keys whose values follow from the option. The param of a group is its option, and that of `mesh` its axes.
    """
    groups = [group for group in _GROUPS if len(set(_values(records, group))) > 1]
    keys = []
    for key in sorted({key for record in records for key in record.params}):
        values = _values(records, key)
        if key.startswith(_NOT_COMPARED) or len(set(values)) < 2:
            continue
        group = key.partition(".")[0]
        options = _values(records, group)
        pairs = set(zip(options, values, strict=True))
        follows_group = group in groups and len(pairs) == len(set(options))
        if not follows_group:
            keys.append(key)
    return groups + keys


def draw_curves(path: Path, store: Store, runs: Sequence[RunRecord], names: Sequence[str]) -> bool:
    """Draws a panel per metric with the curves of runs: by step, or by examples if batch sizes differ.

    Steps of different sizes don't compare. Runs come with the best first; those after the seventh are gray for want of
    colors. Returns whether any metric has two points, which a curve needs; otherwise there is no file.
    """
    along = "training steps"
    per_step = [1] * len(runs)
    sizes = _values(runs, _BATCH_SIZE)
    # A run without a recorded batch size can't be converted, so then all curves are by step.
    if len(set(sizes)) > 1 and all(map(str.isdecimal, sizes)):
        along = "training examples"
        per_step = list(map(int, sizes))
    keys = varying(runs)
    panels: dict[str, list[figures.Curve]] = {}
    for metric in names:
        for index, record in enumerate(runs):
            points = [(step * per_step[index], value) for step, value in history(store, record.run_id, metric)]
            if len(points) < 2:
                continue
            if index < len(figures.SERIES):
                label = varied_name({key: record.params.get(key, "") for key in keys}) or record.name
                curve = figures.Curve(label, points, figures.SERIES[index], dashed=index % 2 == 1)
            else:
                # The legend has one entry for all of them.
                others = f"{len(runs) - len(figures.SERIES)} others"
                curve = figures.Curve(others, points, figures.OTHER, ",", width=0.8)
            panels.setdefault(metric, []).append(curve)
    if not panels:
        return False
    figures.curves(path, panels, along)
    return True


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

    A ConfigError says that a process has it, or has changed its record since.
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
    place = Path(folder or outputs_dir())
    unsent = list(filter(run_file.is_unsent, sorted(place.rglob(run_file.PATTERN))))
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
