"""List of all runs: of the tracking store and of the checkpoint folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mlflow.entities import Run

from runner.checkpoint import runs, storage
from runner.checkpoint.places import Place
from runner.checkpoint.runs import SavedRun
from runner.cli import tables
from runner.cli.runs.records import RunRecord, from_run, is_sweep, judged_by, pick
from runner.cli.runs.request import Request
from runner.cluster import process
from runner.config.fields import seconds_of
from runner.tracking.store import Store, search


@dataclass(frozen=True)
class ListedRun:
    """A run by its id; times are in seconds since 1970.

    Attributes:
      status: one of MLflow's statuses, or UNFINISHED if only its checkpoints show that it did not finish.
      ended: or, if its end is unknown, its start.
      result: the metric that its task is judged by.
      record: in the tracking store.
      saved: its checkpoints.
    """

    run: str
    name: str
    status: str
    started: float
    ended: float
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
        """Seconds since it ended."""
        return time.time() - self.ended


def find(store: Store | None, checkpoints: Place) -> list[ListedRun]:
    """Returns every run, newest first; prints a warning for each whose record is damaged."""
    saved_by_run = {saved.id: saved for saved in runs.listed(checkpoints)}
    listed = []
    if store is not None:
        for run in search(store, None, ""):
            if not is_sweep(run):
                listed.append(_tracked(run, saved_by_run.pop(run.info.run_id, None)))
    listed += map(_untracked, saved_by_run.values())
    return sorted(listed, key=lambda run: -run.started)


def _tracked(run: Run, saved: SavedRun | None) -> ListedRun:
    record = from_run(run)
    if record.status == "RUNNING" and process.is_gone(record.tags):
        record = replace(record, status="KILLED")
    metric = judged_by([record])
    result = ""
    if metric in record.metrics:
        result = f"{metric} {tables.cell([record.metrics[metric]])}"
    ended = (run.info.end_time or run.info.start_time) / 1000
    return ListedRun(
        record.run_id, record.name, record.status, run.info.start_time / 1000, ended, result, record, saved
    )


def _untracked(saved: SavedRun) -> ListedRun:
    record = saved.record
    started = float(record["started"])
    status = "RUNNING"
    ended = None
    # A process that was killed recorded no end.
    if record.get("ended") or process.is_gone(record["process"]):
        status = "UNFINISHED"
        ended = record.get("seen")
    if record.get("finished"):
        status = "FINISHED"
    return ListedRun(saved.id, saved.folder.name, status, started, ended or started, saved=saved)


def select(listed: Sequence[ListedRun], request: Request) -> list[ListedRun]:
    """Returns the runs that match the filters of a request, in the same order.

    Raises:
      ConfigError: it names a run that does not exist, or several.
    """
    names = {run.run: run.name for run in listed}
    chosen = {pick(text, names) for text in request.run}
    kept = [run.run for run in listed if run.saved is not None][: request.keep or 0]
    selected = []
    for run in listed:
        if request.run and run.run not in chosen:
            continue
        if request.status and run.status.lower() not in request.status:
            continue
        if request.older is not None and run.seconds_ago < seconds_of(request.older):
            continue
        if run.run not in kept:
            selected.append(run)
    return selected
