"""Runs as they are recorded, in MLflow or in a run's folder."""

from __future__ import annotations

import json
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from runner.config.convert import flatten
from runner.errors import ConfigError, DataError
from runner.tracking.hidden import params_of, tags_of
from runner.tracking.paging import experiment_ids, pages
from runner.tracking.records import clean_params

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_SPLITS = ("train", "eval", "test")
_GOODPUT = "goodput"
_STEP_MS = "step_ms"
# Characters of a library's error that are shown.
_MAX_REASON = 200
# In a summary, `eval_examples` is the size of an evaluation and not one of its metrics.
_EXAMPLES = "examples"
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}


@dataclass(frozen=True)
class RunRecord:
    """A run.

    Attributes:
      run_id: its id; empty if it was not tracked.
      name: its name.
      status: FINISHED, FAILED, KILLED or RUNNING.
      params: the resolved config, flat.
      metrics: the last value of each metric.
      tags: its tags.
      started: milliseconds since 1970.
      seconds: wall time; NaN while it runs.
    """

    run_id: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str] = field(default_factory=dict)
    started: int = 0
    seconds: float = math.nan


def from_run(run: Run) -> RunRecord:
    """Returns the record of an MLflow run."""
    tags = tags_of(run.data.tags)
    params = params_of(run.data.params, tags)
    seconds = math.nan
    if run.info.end_time:
        seconds = (run.info.end_time - run.info.start_time) / 1000
    return RunRecord(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id[:8],
        status=run.info.status,
        params=params,
        metrics={name: recorded(value) for name, value in run.data.metrics.items()},
        tags=tags,
        started=run.info.start_time or 0,
        seconds=seconds,
    )


def recorded(value: float) -> float:
    """Returns a metric as it was logged.

    MLflow's databases store an infinity as the largest float.
    """
    if abs(value) == sys.float_info.max:
        return math.copysign(math.inf, value)
    return value


def from_folder(folder: Path, name: str, status: str) -> RunRecord | None:
    """Returns the record of a run that only its folder describes.

    Returns None if the run did not start.

    Args:
      folder: has `config.yaml`, and `summary.json` if the run finished.
      name: the run's name.
      status: one of MLflow's statuses.

    Raises:
      DataError: `config.yaml` can't be read, or is not the config of a run.
    """
    path = folder / "config.yaml"
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
        params = None
        if isinstance(content, dict):
            params = clean_params(dict(flatten(content)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    # A full disk, another program or a person may have left anything there. YAML, OmegaConf and the code that reads
    # the keys share no error.
    except Exception as error:
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise DataError(f"{path} is corrupted ({type(error).__name__}: {reason}); remove its folder") from error
    if params is None:
        raise DataError(f"{path} is corrupted (it has no keys); remove its folder")
    return RunRecord("", name, status, params, results_of(folder))


def results_of(folder: Path) -> dict[str, float]:
    """Returns the metrics of a folder's `summary.json`, `eval_loss` as `eval/loss`.

    There are none if there is no such file, or if it is corrupted.

    Args:
      folder: a run's output folder.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text())
        if isinstance(summary, dict):
            return _metrics_of(summary)
    except (OSError, ValueError, OverflowError, RecursionError):
        pass
    return {}


def _metrics_of(summary: Mapping[str, object]) -> dict[str, float]:
    """Returns the metrics of a summary."""
    metrics = {}
    for key, value in summary.items():
        if not isinstance(value, int | float):
            continue
        split, _, name = key.partition("_")
        if split in _SPLITS and name != _EXAMPLES:
            metrics[f"{split}/{name}"] = float(value)
        elif key == _STEP_MS:
            metrics[f"throughput/{key}"] = float(value)
        elif key == _GOODPUT:
            metrics[f"{key}/training"] = float(value)
    return metrics


@dataclass(frozen=True)
class Filter:
    """Selects the runs to compare; a run must match every part that is set.

    Attributes:
      experiments: names; none: every one.
      parent_run_id: the sweep whose jobs they are.
      tags: `key=value`, or `key` alone for any value.
      metrics: `name>0.9`, `name<=0.1`, or `name` alone for any value.
      statuses: such as FINISHED; none: every one.
    """

    experiments: Sequence[str] = ()
    parent_run_id: str | None = None
    tags: Sequence[str] = ()
    metrics: Sequence[str] = ()
    statuses: Sequence[str] = ()


def load(client: MlflowClient, wanted: Filter) -> list[RunRecord]:
    """Returns the runs that match a filter, oldest first, without sweeps' parents.

    Tags and metrics are compared here and not by MLflow, because the config that they may name is in one packed tag.

    Args:
      client: MLflow's client.
      wanted: the filter.

    Raises:
      ConfigError: an experiment does not exist, or a filter can't be parsed.
    """
    tests = [*map(_tag_test, wanted.tags), *map(_metric_test, wanted.metrics)]
    experiments = _experiment_ids(client, wanted.experiments)
    query = ""
    if wanted.parent_run_id:
        query = f"tags.mlflow.parentRunId = '{wanted.parent_run_id}'"
    records = []
    for run in pages(client, experiments, query, ["attributes.start_time ASC"]):
        if run.data.tags.get("runner.kind") == "sweep":
            continue
        record = from_run(run)
        if wanted.statuses and record.status not in wanted.statuses:
            continue
        if all(test(record) for test in tests):
            records.append(record)
    return records


def history(client: MlflowClient, run_id: str, metric: str) -> list[tuple[int, float]]:
    """Returns a metric's points as (step, value), by step."""
    points = client.get_metric_history(run_id, metric)
    return sorted((point.step, recorded(point.value)) for point in points)


def _experiment_ids(client: MlflowClient, names: Sequence[str]) -> list[str]:
    ids = experiment_ids(client)
    for name in names:
        if name not in ids:
            raise ConfigError(f"--experiment {name}: unknown experiment; the store has {', '.join(sorted(ids))}")
    if not names:
        return list(ids.values())
    return [ids[name] for name in names]


def _tag_test(text: str) -> Callable[[RunRecord], bool]:
    key, equals, value = text.partition("=")
    if equals:
        return lambda record: record.tags.get(key, record.params.get(key)) == value
    return lambda record: key in record.tags


def _metric_test(text: str) -> Callable[[RunRecord], bool]:
    match = re.fullmatch(r"([^<>=]+?)\s*(?:(>=|<=|>|<|=)\s*(\S+))?", text.strip())
    if match is None:
        raise ConfigError(f"--metric {text!r}: must be a name or a comparison; write it as 'eval/loss<0.3'")
    name, sign, bound = match.groups()
    if sign is None:
        return lambda record: name in record.metrics
    try:
        limit = float(bound)
    except ValueError as error:
        raise ConfigError(f"--metric {text!r}: {bound} is not a number; write it as 'eval/loss<0.3'") from error
    compare = _COMPARISONS[sign]
    return lambda record: name in record.metrics and compare(record.metrics[name], limit)
