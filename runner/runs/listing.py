"""List of all runs: of the tracking store, checkpoint folder and outputs/runs."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from mlflow.entities import Run

from runner.compare import metrics
from runner.compare.lines import Stat
from runner.compare.records import RunRecord, from_run, results_of
from runner.compare.render import show
from runner.errors import invalid
from runner.host import folders
from runner.host.stores.urls import Place
from runner.runs.selection import Selection
from runner.tracking import process
from runner.tracking.named import LATEST, named
from runner.tracking.store import Store, search
from runner.training.checkpoint import runs, storage
from runner.training.checkpoint.runs import SavedRun

# A run with this tag set to `true` is skipped by `clean`.
KEEP_TAG = "runner.keep"
_KIND_TAG = "runner.kind"
_SWEEP = "sweep"
# Runs that an error lists.
_SUGGESTIONS = 3


@dataclass(frozen=True)
class ListedRun:
    """A run.

    Attributes:
      run: its id, or the name of its folder if it was not tracked.
      name: its name.
      status: one of MLflow's statuses, or UNFINISHED if only its checkpoints show that it did not finish.
      started: seconds since 1970.
      ended: seconds since 1970; null: it is running, or its end was not recorded.
      result: the metric that its task is judged by.
      is_kept: a person said that `clean` must skip it.
      is_stored: the tracking store has it.
      is_foreign: it was tracked in another store, where somebody may keep it.
      saved: its checkpoints; null: there are none.
      steps: steps of the checkpoints.
      bytes: size of the checkpoints.
      origin: run and step that it branches from; empty: none.
      config: file of its config, if only its output folder knows the run; null: it is recorded elsewhere.
    """

    run: str
    name: str
    status: str
    started: float
    ended: float | None
    result: str = ""
    is_kept: bool = False
    is_stored: bool = False
    is_foreign: bool = False
    saved: SavedRun | None = None
    steps: tuple[int, ...] = ()
    bytes: int = 0
    origin: str = ""
    config: Path | None = None

    @property
    def seconds_ago(self) -> float:
        """Seconds since it ended or, if its end is unknown, since it started."""
        return time.time() - (self.ended or self.started)


def find(store: Store | None, checkpoints: Place, outputs: Path) -> tuple[list[ListedRun], list[str]]:
    """Returns every run, newest first, and one line for each that can't be read.

    Args:
      store: the tracking store; null: there is none.
      checkpoints: folder of the runs' checkpoints.
      outputs: folder of the runs' output folders.
    """
    saved_runs, damaged = runs.listed(checkpoints)
    saved_by_run = {saved.id: saved for saved in saved_runs}
    tracked: dict[str, Run] = {}
    if store is not None:
        tracked = {run.info.run_id: run for run in _stored_runs(store)}
        # A search does not return deleted runs, so those that have checkpoints are requested one by one.
        missing = []
        for saved in saved_runs:
            if saved.tracking_id and saved.id not in tracked:
                missing.append(saved.id)
        tracked |= _deleted_runs(store, missing)
    listed = []
    for run_id, run in tracked.items():
        listed.append(_tracked(run, saved_by_run.get(run_id)))
    for saved in saved_runs:
        if saved.id not in tracked:
            listed.append(_untracked(saved))
    known = {run.run for run in listed}
    listed += _of_output_folders(outputs, known)
    listed.sort(key=lambda run: -run.started)
    warnings = [f"skipping {folder}: {error}" for folder, error in damaged.items()]
    return listed, warnings


def _stored_runs(store: Store) -> list[Run]:
    """Returns the store's runs, without the parents of sweeps."""
    training_runs = []
    for run in search(store, None, ""):
        if run.data.tags.get(_KIND_TAG) != _SWEEP:
            training_runs.append(run)
    return training_runs


def _deleted_runs(store: Store, run_ids: Iterable[str]) -> dict[str, Run]:
    """Returns those of the runs that were deleted in the store.

    A search does not return them.
    """
    deleted = {}
    for run_id in run_ids:
        try:
            deleted[run_id] = store.client.get_run(run_id)
        # The store never had this run. MLflow's stores raise no common error for that.
        except Exception:
            continue
    return deleted


def _tracked(run: Run, saved: SavedRun | None) -> ListedRun:
    record = from_run(run)
    status = record.status
    if status == "RUNNING" and process.is_gone(record.tags):
        status = "KILLED"
    elif run.info.lifecycle_stage != "active":
        status = "DELETED"
    ended = None
    if run.info.end_time:
        ended = run.info.end_time / 1000
    return ListedRun(
        run=record.run_id,
        name=record.name,
        status=status,
        started=record.started / 1000,
        ended=ended,
        result=result_of(record),
        is_kept=record.tags.get(KEEP_TAG, "").lower() == "true",
        is_stored=True,
        origin=record.tags.get("runner.branched_from", ""),
        **_checkpoints(saved),
    )


def _untracked(saved: SavedRun) -> ListedRun:
    record = saved.record
    # A process that was killed recorded no end.
    has_ended = record.get("ended") or process.is_gone(record["process"])
    status = "RUNNING"
    ended = None
    if has_ended:
        status = "UNFINISHED"
        ended = _last_saved(saved)
    if record.get("finished"):
        status = "FINISHED"
    return ListedRun(
        run=saved.id,
        name=saved.folder.name,
        status=status,
        started=float(record["started"]),
        ended=ended,
        is_kept=bool(record.get("kept")),
        is_foreign=saved.tracking_id is not None,
        origin=str(record.get("origin", "")),
        **_checkpoints(saved),
    )


def _last_saved(saved: SavedRun) -> float:
    """Returns the time of an untracked run's last checkpoint, its last trace."""
    return max(storage.written_at(saved.folder, step) for step in storage.steps(saved.folder))


def _checkpoints(saved: SavedRun | None) -> dict[str, Any]:
    """Returns the fields of a `ListedRun` about its checkpoints."""
    if saved is None:
        return {}
    steps = tuple(storage.steps(saved.folder))
    total = sum(storage.size(saved.folder, step) for step in steps)
    return {"saved": saved, "steps": steps, "bytes": total}


def _of_output_folders(outputs: Path, known: Collection[str]) -> list[ListedRun]:
    """Returns the runs that only their output folders know.

    A run's config is not read here, because parsing one takes 15 ms: `readable` reads those of the rows that are
    shown.

    Args:
      outputs: folder of the output folders.
      known: runs that are recorded elsewhere too.
    """
    listed = []
    # Of a folder that does not exist, `glob` returns nothing.
    for folder in outputs.glob("*"):
        run = folders.noted_run(folder)
        if run is None or run in known:
            continue
        config = folder / "config.yaml"
        try:
            started = config.stat().st_mtime
        except OSError:
            # The run did not start.
            continue
        status = "UNFINISHED"
        if (folder / "summary.json").is_file():
            status = "FINISHED"
        result = result_of(RunRecord("", folder.name, status, {}, results_of(folder)))
        listed.append(ListedRun(run, folder.name, status, started, None, result, config=config))
    return listed


def readable(listed: Iterable[ListedRun], limit: int) -> tuple[list[ListedRun], list[str]]:
    """Returns the first runs of a list, and one line for each that is skipped.

    A run is skipped if its config can't be read.

    Args:
      listed: the runs.
      limit: most runs to return; 0: all.
    """
    shown: list[ListedRun] = []
    warnings: list[str] = []
    for run in listed:
        if limit and len(shown) == limit:
            break
        problem = None
        if run.config is not None:
            problem = _config_problem(run.config)
        if problem is None:
            shown.append(run)
        else:
            warnings.append(f"skipping {run.config}: {problem}")
    return shown, warnings


def _config_problem(config: Path) -> str | None:
    """Returns in one line why a config can't be read; None if it can."""
    # The loader in C, which PyYAML may lack, takes a tenth of the time. Both create plain values only.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = yaml.load(config.read_text("utf-8"), Loader=loader)
        # An alias may make a value part of itself.
        json.dumps(content, default=str)
    except (OSError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
        return " ".join(str(error).split())
    if not isinstance(content, dict):
        return "it has no keys"
    return None


def result_of(record: RunRecord) -> str:
    """Returns the metric that a run's task is judged by, as a cell shows it.

    The text is empty if it has none.
    """
    metric = metrics.judged_by([record])
    if metric not in record.metrics:
        return ""
    return f"{metric} {show(Stat(record.metrics[metric]))}"


def select(listed: Sequence[ListedRun], selection: Selection) -> list[ListedRun]:
    """Returns the runs that match a selection, in the same order.

    Raises:
      ConfigError: it names a run that does not exist, or several.
    """
    named = {named_run(listed, text).run for text in selection.runs}
    newest: list[str] = []
    for run in listed:
        if run.saved is not None and len(newest) < (selection.keep or 0):
            newest.append(run.run)
    selected = []
    for run in listed:
        if selection.runs and run.run not in named:
            continue
        if selection.older is not None and run.seconds_ago < selection.older:
            continue
        if selection.statuses and run.status not in selection.statuses:
            continue
        if run.run in newest:
            continue
        selected.append(run)
    return selected


def named_run(listed: Sequence[ListedRun], text: str) -> ListedRun:
    """Returns the run with an id, the start of one, a name or `latest`.

    See `runner.tracking.named`.

    Args:
      listed: newest first.
      text: as typed.

    Raises:
      ConfigError: there is none, or an id's start matches several.
    """
    if text == LATEST and listed:
        return listed[0]
    runs = {run.run: run for run in listed}
    try:
        return runs[named(text, {run_id: run.name for run_id, run in runs.items()})]
    except LookupError as error:
        newest = ", ".join(run.run for run in listed[:_SUGGESTIONS]) or "none yet"
        problem = f"{error} (newest: {newest})"
        raise invalid("run", text, problem=problem, fix="set run=latest or run=<id>") from error
