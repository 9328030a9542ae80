"""Runs as MLflow or a run's folder records them, and the metrics that they are compared by."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlflow.entities import Run

from runner.errors import invalid
from runner.task import metrics
from runner.tracking.store import KIND_TAG, LATEST, Store, search

_SPLITS = ("train", "eval", "test")
_STEP_MS = "step_ms"
_SPEED = ("throughput/examples_per_second", "throughput/step_ms")
# In a summary, `eval_examples` is the size of an evaluation and not one of its metrics.
_EXAMPLES = "examples"
# Runs that an error lists.
_SUGGESTIONS = 3


@dataclass(frozen=True)
class RunRecord:
    """A run, without an id if it was not tracked: the params of its page, the last value of each metric."""

    run_id: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str] = field(default_factory=dict)


def from_run(run: Run) -> RunRecord:
    """Returns the record of an MLflow run."""
    return RunRecord(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id[:8],
        status=run.info.status,
        params=run.data.params,
        metrics={name: recorded(value) for name, value in run.data.metrics.items()},
        tags=run.data.tags,
    )


def recorded(value: float) -> float:
    """Returns a metric as it was logged: MLflow's databases store an infinity as the largest float."""
    if abs(value) == sys.float_info.max:
        return math.copysign(math.inf, value)
    return value


def results_of(folder: Path) -> dict[str, float]:
    """Returns the metrics of a folder's `summary.json`, `eval_loss` as `eval/loss`; none if it is not whole."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
        results = {}
        for key, value in dict(summary).items():
            split, _, name = key.partition("_")
            if not isinstance(value, int | float):
                continue
            if split in _SPLITS and name != _EXAMPLES:
                results[f"{split}/{name}"] = float(value)
            elif key == _STEP_MS:
                results[f"throughput/{key}"] = float(value)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return {}
    return results


def is_sweep(run: Run) -> bool:
    """Returns whether a run is the parent of a sweep, which trained nothing."""
    return bool(run.data.tags.get(KIND_TAG) == "sweep")


def find_run(store: Store, which: str) -> Run:
    """Returns the run with an id, the start of one, a name or `latest`.

    Raises:
      ConfigError: no run matches, or an id's start matches several.
    """
    runs = {run.info.run_id: run for run in search(store, None, "") if not is_sweep(run)}
    return runs[pick(which, {run_id: run.info.run_name for run_id, run in runs.items()})]


def pick(which: str, names: Mapping[str, str]) -> str:
    """Returns the id that a text names, given run ids and names, newest first.

    A complete id comes before a name, of which the newest run counts, and a name before the start of an id.

    Raises:
      ConfigError: there is none, or an id's start matches several.
    """
    if which == LATEST and names:
        return next(iter(names))
    by_start = [run_id for run_id in names if which and run_id.startswith(which)]
    if which in by_start:
        return which
    for run_id, name in names.items():
        if name == which:
            return run_id
    if len(by_start) == 1:
        return by_start[0]
    problem = "several run ids start with this" if by_start else "no run has this id or name"
    problem += f" (newest: {', '.join(list(names)[:_SUGGESTIONS]) or 'none yet'})"
    raise invalid("run", which, problem=problem, fix="set run=latest or run=<id>")


def history(store: Store, run_id: str, metric: str) -> list[tuple[int, float]]:
    """Returns a metric's points as (step, value), by step."""
    points = store.client.get_metric_history(run_id, metric)
    return sorted((point.step, recorded(point.value)) for point in points)


def values_in(records: Sequence[RunRecord], metric: str) -> list[float]:
    """Returns a metric of those runs that have it."""
    return [record.metrics[metric] for record in records if metric in record.metrics]


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


def shown_metrics(records: Sequence[RunRecord], metric: str) -> list[str]:
    """Returns the recorded metrics that a table of runs shows, `metric` first and the loss after the others."""
    loss, *evaluated = directions(records)
    evaluated.append(loss)
    tested = [metrics.TEST + name.removeprefix(metrics.EVAL) for name in evaluated]
    recorded = {name for record in records for name in record.metrics}
    names = dict.fromkeys((metric, *evaluated, *tested, f"{metrics.TRAIN}loss", *_SPEED))
    return [name for name in names if name in recorded]


def judged_by(records: Sequence[RunRecord]) -> str:
    """Returns the metric that runs are compared by unless another one is named."""
    return metrics.default({name.removeprefix(metrics.EVAL): better for name, better in directions(records).items()})


def higher_is_better(metric: str, records: Sequence[RunRecord] = ()) -> bool:
    """Returns whether the runs' tasks say so of a metric of any split."""
    name = metric.rpartition("/")[2]
    return directions(records).get(f"{metrics.EVAL}{name}") == metrics.MAXIMIZE
