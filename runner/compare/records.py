"""Runs as they are recorded, whether in MLflow or in a run's folder."""

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

from runner.config import renamed
from runner.config.convert import flatten
from runner.errors import ConfigError, DataError
from runner.tracking.hidden import params_of, tags_of
from runner.tracking.paging import pages
from runner.tracking.records import clean_params

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_SPLITS = ("train", "eval", "test")
_STEP_MS = "step_ms"
_LONGEST = 200  # characters of a library's error that are shown
_BESIDE = "examples"  # how many an evaluation was over
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
      run_id: its id; empty where nothing was recorded.
      name: its name.
      status: FINISHED, FAILED, KILLED or RUNNING.
      params: the resolved config, flat.
      metrics: the last value of each.
      tags: of the run.
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
    ended = run.info.end_time
    tags = tags_of(run.data.tags)
    params = params_of(run.data.params, tags)
    return RunRecord(
        run.info.run_id,
        run.info.run_name or run.info.run_id[:8],
        run.info.status,
        {renamed.KEYS.get(key, key): value for key, value in params.items()},
        {name: recorded(value) for name, value in run.data.metrics.items()},
        tags,
        run.info.start_time or 0,
        (ended - run.info.start_time) / 1000 if ended else math.nan,
    )


def recorded(value: float) -> float:
    """Returns a metric as it was logged: MLflow's databases keep an infinity as the largest float."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def from_folder(folder: Path, name: str, status: str) -> RunRecord | None:
    """Returns the record of a run that only its folder tells of; None where it did not begin.

    Args:
      folder: holds `config.yaml`, and `summary.json` where the run finished.
      name: the run's name.
      status: as MLflow words it.

    Raises:
      DataError: `config.yaml` can't be read, or is not the config of a run.
    """
    path = folder / "config.yaml"
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
        params = clean_params(dict(flatten(content))) if isinstance(content, dict) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    # A disk that was full, another program or a person may have left anything: YAML, OmegaConf and what reads the
    # keys share no error.
    except Exception as error:
        reason = " ".join(str(error).split())[:_LONGEST]
        raise DataError(f"{path} is damaged ({type(error).__name__}: {reason}); remove its folder") from error
    if params is None:
        raise DataError(f"{path} is damaged (it has no keys); remove its folder")
    return RunRecord("", name, status, params, results_of(folder))


def results_of(folder: Path) -> dict[str, float]:
    """Returns the metrics of a folder's `summary.json`, `eval_loss` as `eval/loss`.

    There are none if there is no such file, or it is damaged.

    Args:
      folder: that a run wrote into.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text())
        return _of_summary(summary) if isinstance(summary, dict) else {}
    except (OSError, ValueError, OverflowError, RecursionError):
        return {}


def _of_summary(summary: Mapping[str, object]) -> dict[str, float]:
    """Returns the metrics of a `summary.json`, `eval_loss` as `eval/loss`."""
    found = {}
    for key, value in summary.items():
        split, _, name = key.partition("_")
        if isinstance(value, int | float) and name != _BESIDE and split in _SPLITS:
            found[f"{split}/{name}"] = float(value)
        elif isinstance(value, int | float) and key == _STEP_MS:
            found[f"throughput/{key}"] = float(value)
    return found


@dataclass(frozen=True)
class Filter:
    """Which runs to compare; each given part must hold.

    Attributes:
      experiments: names; none: every one.
      parent_run_id: the sweep whose jobs they are.
      tags: `key=value`, or `key` alone for any value.
      metrics: `name>0.9`, `name<=0.1`, or `name` alone for any value.
      statuses: as FINISHED; none: every one.
    """

    experiments: Sequence[str] = ()
    parent_run_id: str | None = None
    tags: Sequence[str] = ()
    metrics: Sequence[str] = ()
    statuses: Sequence[str] = ()


def load(client: MlflowClient, wanted: Filter) -> list[RunRecord]:
    """Returns the runs that pass a filter, oldest first; the parents of sweeps are left out.

    Args:
      client: an `mlflow.MlflowClient`.
      wanted: the filter.

    Raises:
      ConfigError: an experiment that is not there, or a filter that can't be read.
    """
    tests = [_tag_test(one) for one in wanted.tags] + [_metric_test(one) for one in wanted.metrics]
    text = f"tags.mlflow.parentRunId = '{wanted.parent_run_id}'" if wanted.parent_run_id else ""
    where = _experiment_ids(client, wanted.experiments)
    runs = pages(client, where, text, ["attributes.start_time ASC"])
    found = [from_run(run) for run in runs if run.data.tags.get("runner.kind") != "sweep"]
    return [
        record
        for record in found
        if (not wanted.statuses or record.status in wanted.statuses) and all(test(record) for test in tests)
    ]


def history(client: MlflowClient, run_id: str, metric: str) -> list[tuple[int, float]]:
    """Returns a metric's points as (step, value), by step."""
    return sorted((point.step, recorded(point.value)) for point in client.get_metric_history(run_id, metric))


def _experiment_ids(client: MlflowClient, names: Sequence[str]) -> list[str]:
    there = {one.name: one.experiment_id for one in client.search_experiments()}
    for name in names:
        if name not in there:
            raise ConfigError(f"--experiment {name}: experiments are {', '.join(sorted(there))}")
    return [there[name] for name in names] if names else list(there.values())


def _tag_test(text: str) -> Callable[[RunRecord], bool]:
    key, equals, value = text.partition("=")
    if equals:
        return lambda record: record.tags.get(key, record.params.get(key)) == value
    return lambda record: key in record.tags


def _metric_test(text: str) -> Callable[[RunRecord], bool]:
    match = re.fullmatch(r"([^<>=]+?)\s*(?:(>=|<=|>|<|=)\s*(\S+))?", text.strip())
    if match is None:
        raise ConfigError(f"--metric {text!r}: write a name, or as 'eval/loss<0.3'")
    name, sign, bound = match.groups()
    if sign is None:
        return lambda record: name in record.metrics
    try:
        limit = float(bound)
    except ValueError as error:
        raise ConfigError(f"--metric {text!r}: {bound} is not a number") from error
    compare = _COMPARISONS[sign]
    return lambda record: name in record.metrics and compare(record.metrics[name], limit)
