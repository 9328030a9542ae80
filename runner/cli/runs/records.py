"""Runs as MLflow or a run's folder records them, and the metrics that they are compared by."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlflow.entities import Metric, Run

from runner.checkpoint import runs
from runner.checkpoint.places import Place
from runner.checkpoint.runs import SavedRun
from runner.cli import tables
from runner.cli.runs.request import Request, seconds_of
from runner.cluster import process
from runner.console import size
from runner.errors import invalid
from runner.task import metrics
from runner.tracking.records import figures_of
from runner.tracking.store import KIND_TAG, LATEST, Store, search

_SPLITS = ("train", "eval", "test", "plan")
_SPEEDS = ("step_ms", "input_wait", "model_flop_utilization")
_SPEED = ("throughput/examples_per_second", "throughput/step_ms")
_PLAN_BYTES = ("plan/bytes_per_device", "plan/collective_bytes")
_PLAN = (*_PLAN_BYTES, "plan/flops_per_device")
# Keys with which the figures of plans vary.
_SHARDING = {"mesh", "layout"}
# Tag of a run that was verified.
VERDICT_TAG = "runner.verdict"
# Runs that an error lists.
_SUGGESTIONS = 3


@dataclass(frozen=True)
class RunRecord:
    """A run: the params of its page, the last value of each metric, and its checkpoints.

    The status is one of MLflow's, or UNFINISHED if only its checkpoints show that it did not finish. Times are in
    seconds since 1970; an unknown end is the start. Without an id it left neither a page nor checkpoints.
    """

    run_id: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0
    ended: float = 0.0
    saved: SavedRun | None = None


def from_run(run: Run) -> RunRecord:
    """Returns the record of an MLflow run."""
    status = run.info.status
    if status == "RUNNING" and process.is_gone(run.data.tags):
        status = "KILLED"
    values: dict[str, float] = {}
    for point in run.data.to_proto().metrics:
        if not is_placeholder(point):
            values[point.key] = point.value
    return RunRecord(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id[:8],
        status=status,
        params=run.data.params,
        metrics=values | figures_of(run.data.tags),
        tags=run.data.tags,
        started=run.info.start_time / 1000,
        ended=(run.info.end_time or run.info.start_time) / 1000,
    )


def _untracked(saved: SavedRun) -> RunRecord:
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
    return RunRecord(saved.id, saved.folder.name, status, {}, {}, {}, started, ended or started, saved)


def find(store: Store | None, checkpoints: Place) -> list[RunRecord]:
    """Returns every run of a store and of a folder, newest first; prints a warning for each damaged record."""
    saved_by_run = {saved.id: saved for saved in runs.listed(checkpoints)}
    found = []
    for record in tracked(store):
        found.append(replace(record, saved=saved_by_run.pop(record.run_id, None)))
    found += map(_untracked, saved_by_run.values())
    return sorted(found, key=lambda record: -record.started)


def tracked(store: Store | None) -> list[RunRecord]:
    """Returns every run of a store, newest first, without the parents of sweeps, which trained nothing."""
    if store is None:
        return []
    return [from_run(run) for run in search(store, None, "") if run.data.tags.get(KIND_TAG) != "sweep"]


def select(records: Sequence[RunRecord], request: Request) -> list[RunRecord]:
    """Returns the runs that match the filters of a request, in the same order; raises as `pick` does."""
    chosen = {pick(text, records).run_id for text in request.run}
    kept = [record.run_id for record in records if record.saved is not None][: request.keep or 0]
    selected = []
    for record in records:
        if request.run and record.run_id not in chosen:
            continue
        if request.status and record.status.lower() not in request.status:
            continue
        if request.older is not None and time.time() - record.ended < seconds_of(request.older):
            continue
        if record.run_id not in kept:
            selected.append(record)
    return selected


def pick(which: str, records: Sequence[RunRecord]) -> RunRecord:
    """Returns the run with an id, the start of one, a name or `latest`, of records that are newest first.

    A complete id comes before a name, of which the newest run counts, and a name before the start of an id. It raises
    ConfigError if there is none, or if an id's start matches several.
    """
    by_start = [record for record in records if which and record.run_id.startswith(which)]
    named = [record for record in by_start if record.run_id == which]
    named += [record for record in records if which in (record.name, LATEST)]
    if named:
        return named[0]
    if len(by_start) == 1:
        return by_start[0]
    problem = "no run has this id or name"
    if by_start:
        problem = "several run ids start with this"
    newest = ", ".join(record.run_id for record in records[:_SUGGESTIONS])
    problem += f" (newest: {newest or 'none yet'})"
    raise invalid("run", which, problem=problem, fix="set run=latest or run=<id>")


def results_of(folder: Path) -> dict[str, float]:
    """Returns the metrics of a folder's `summary.json`, `eval_loss` as `eval/loss`; none if it can't be read."""
    results: dict[str, float] = {}
    with suppress(OSError, ValueError):
        for key, value in json.loads((folder / "summary.json").read_text()).items():
            split, _, name = key.partition("_")
            if not isinstance(value, int | float):
                continue
            # `eval_examples` is the size of an evaluation.
            if split in _SPLITS and name != "examples":
                results[f"{split}/{name}"] = float(value)
            elif key in _SPEEDS:
                results[f"throughput/{key}"] = float(value)
    return results


def verdict_of(folder: Path) -> str:
    """Returns the verdict in a folder's `verify.json`; empty if there is none."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads((folder / "verify.json").read_text())["verdict"])
    return ""


def is_placeholder(point: Metric) -> bool:
    """Returns whether a point is that of a new run which was not evaluated yet, see `runner.tracking.start`."""
    return point.step == 0 and math.isnan(point.value)


def history(store: Store, run_id: str, metric: str) -> list[tuple[int, float]]:
    """Returns a metric's points as (step, value), by step."""
    points = store.client.get_metric_history(run_id, metric)
    return sorted((point.step, point.value) for point in points if not is_placeholder(point))


def directions(records: Sequence[RunRecord]) -> dict[str, str]:
    """Returns the evaluation metrics, `minimize` or `maximize` as the runs' tasks declare, the loss first."""
    found = {metrics.LOSS: metrics.MINIMIZE}
    for record in records:
        found |= metrics.evaluated(json.loads(record.tags.get(metrics.TAG, "{}")))
    for record in records:
        for name in record.metrics:
            if name.startswith(metrics.EVAL):
                # A custom step's own metrics have no declared direction.
                found.setdefault(name, metrics.MINIMIZE)
    return found


def result_columns(records: Sequence[RunRecord], metric: str, keys: Sequence[str]) -> dict[str, list[str]]:
    """Returns the columns of results of a table of runs, by title: `metric` first, and the loss after the others.

    Figures of plans are shown where no run was evaluated. Beside evaluations, they are if the mesh or the layout is
    among the keys in which the runs differ, and only those that differ.
    """
    loss, *evaluated = directions(records)
    evaluated.append(loss)
    tested = [metrics.TEST + name.removeprefix(metrics.EVAL) for name in evaluated]
    wanted = dict.fromkeys((metric, *evaluated, *tested, f"{metrics.TRAIN}loss", *_SPEED, *_PLAN))
    is_evaluated = any(name.startswith(metrics.EVAL) for record in records for name in record.metrics)
    sharding_differs = not _SHARDING.isdisjoint(key.partition(".")[0] for key in keys)
    names = []
    for name in wanted:
        values = {record.metrics.get(name) for record in records}
        is_shown = name == metric or name not in _PLAN or not is_evaluated or (sharding_differs and len(values) > 1)
        if is_shown and values != {None}:
            names.append(name)
    columns = {}
    for name in names:
        columns[tables.title(name, names)] = [_cell(record, name) for record in records]
    verdicts = [record.tags.get(VERDICT_TAG, "") for record in records]
    if any(verdicts):
        columns["verdict"] = verdicts
    return columns


def _cell(record: RunRecord, name: str) -> str:
    if name not in record.metrics:
        return ""
    if name in _PLAN_BYTES:
        return size(record.metrics[name])
    return tables.cell(record.metrics[name])


def judged_by(records: Sequence[RunRecord]) -> str:
    """Returns the metric that runs are compared by unless another one is named."""
    return metrics.default({name.removeprefix(metrics.EVAL): better for name, better in directions(records).items()})


def higher_is_better(metric: str, records: Sequence[RunRecord] = ()) -> bool:
    """Returns whether the runs' tasks say so of a metric of any split."""
    name = metric.rpartition("/")[2]
    return directions(records).get(f"{metrics.EVAL}{name}") == metrics.MAXIMIZE
