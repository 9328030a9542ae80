"""List of all runs: of the tracking store and of the checkpoint folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mlflow.entities import Run

from runner.checkpoint import runs, storage
from runner.checkpoint.runs import SavedRun
from runner.cli import tables
from runner.cli.runs.records import RunRecord, from_run, is_sweep, judged_by, pick
from runner.cli.runs.request import Request
from runner.host.stores.urls import Place
from runner.tracking import process
from runner.tracking.store import Store, search


@dataclass(frozen=True)
class ListedRun:
    """A run by its id; times are in seconds since 1970.

    Attributes:
      status: one of MLflow's statuses, or UNFINISHED if only its checkpoints show that it did not finish.
      ended: None: it is running, or its end was not recorded.
      result: the metric that its task is judged by.
      record: in the tracking store.
      saved: its checkpoints.
    """

    run: str
    name: str
    status: str
    started: float
    ended: float | None
    result: str = ""
    record: RunRecord | None = None
    saved: SavedRun | None = None

    @cached_property
    def steps(self) -> list[int]:
        """Steps of the checkpoints."""
        return [] if self.saved is None else storage.steps(self.saved.folder)

    @cached_property
    def bytes(self) -> int:
        """Size of the checkpoints."""
        return 0 if self.saved is None else sum(storage.size(self.saved.folder, step) for step in self.steps)

    @property
    def seconds_ago(self) -> float:
        """Seconds since it ended or, if its end is unknown, since it started."""
        return time.time() - (self.ended or self.started)


def find(store: Store | None, checkpoints: Place) -> tuple[list[ListedRun], list[str]]:
    """Returns every run, newest first, and one line for each whose record is damaged."""
    saved_runs, damaged = runs.listed(checkpoints)
    saved_by_run = {saved.id: saved for saved in saved_runs}
    listed = []
    if store is not None:
        for run in search(store, None, ""):
            if not is_sweep(run):
                listed.append(_tracked(run, saved_by_run.pop(run.info.run_id, None)))
    listed += map(_untracked, saved_by_run.values())
    listed.sort(key=lambda run: -run.started)
    return listed, [f"skipping {folder}: {error}" for folder, error in damaged.items()]


def _tracked(run: Run, saved: SavedRun | None) -> ListedRun:
    record = from_run(run)
    if record.status == "RUNNING" and process.is_gone(record.tags):
        record = replace(record, status="KILLED")
    metric = judged_by([record])
    result = ""
    if metric in record.metrics:
        result = f"{metric} {tables.cell([record.metrics[metric]])}"
    return ListedRun(
        run=record.run_id,
        name=record.name,
        status=record.status,
        started=run.info.start_time / 1000,
        ended=run.info.end_time / 1000 if run.info.end_time else None,
        result=result,
        record=record,
        saved=saved,
    )


def _untracked(saved: SavedRun) -> ListedRun:
    record = saved.record
    status = "RUNNING"
    ended = None
    # A process that was killed recorded no end.
    if record.get("ended") or process.is_gone(record["process"]):
        status = "UNFINISHED"
        # The time of the last checkpoint, its last trace.
        ended = storage.saved_at(saved.folder)
    if record.get("finished"):
        status = "FINISHED"
    return ListedRun(
        run=saved.id,
        name=saved.folder.name,
        status=status,
        started=float(record["started"]),
        ended=ended,
        saved=saved,
    )


def select(listed: Sequence[ListedRun], request: Request) -> list[ListedRun]:
    """Returns the runs that match the filters of a request, in the same order.

    Raises:
      ConfigError: it names a run that does not exist, or several.
    """
    names = {run.run: run.name for run in listed}
    chosen = {pick(text, names) for text in request.runs}
    kept = [run.run for run in listed if run.saved is not None][: request.keep or 0]
    selected = []
    for run in listed:
        if request.runs and run.run not in chosen:
            continue
        if request.older is not None and run.seconds_ago < request.older:
            continue
        if request.statuses and run.status not in request.statuses:
            continue
        if run.run not in kept:
            selected.append(run)
    return selected
