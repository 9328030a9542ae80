"""Runs as they are recorded, in MLflow or in a run's folder, and the metrics that they are compared by."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from runner.config.convert import flatten
from runner.errors import ConfigError, DataError
from runner.task import metrics
from runner.tracking.hidden import params_of, tags_of
from runner.tracking.named import LATEST, named
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
# Runs among which the latest is searched. A sweep's parent run is skipped, so the newest run alone is not enough.
_RUNS_SEARCHED = 1000


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
    """

    run_id: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str] = field(default_factory=dict)


def from_run(run: Run) -> RunRecord:
    """Returns the record of an MLflow run."""
    tags = tags_of(run.data.tags)
    return RunRecord(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id[:8],
        status=run.info.status,
        params=params_of(run.data.params, tags),
        metrics={name: recorded(value) for name, value in run.data.metrics.items()},
        tags=tags,
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
    return RunRecord("", name, status, params, _results_of(folder))


def _results_of(folder: Path) -> dict[str, float]:
    """Returns the metrics of a folder's `summary.json`, `eval_loss` as `eval/loss`; none if it is corrupted."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
        if isinstance(summary, dict):
            return _metrics_of(summary)
    except (OSError, ValueError, OverflowError, RecursionError):
        pass
    return {}


def _metrics_of(summary: Mapping[str, object]) -> dict[str, float]:
    results = {}
    for key, value in summary.items():
        if not isinstance(value, int | float):
            continue
        split, _, name = key.partition("_")
        if split in _SPLITS and name != _EXAMPLES:
            results[f"{split}/{name}"] = float(value)
        elif key == _STEP_MS:
            results[f"throughput/{key}"] = float(value)
        elif key == _GOODPUT:
            results[f"{key}/training"] = float(value)
    return results


def find_run(client: MlflowClient, which: str, key: str = "run=") -> Run:
    """Finds a run by its id, the start of its id, its name or `latest`.

    See `runner.tracking.named`.

    Args:
      client: MLflow's client.
      which: as typed.
      key: text before it in an error, such as the option's name.

    Raises:
      ConfigError: no run matches, or an id's start matches several.
    """
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    order = ["attributes.start_time DESC"]
    if which == LATEST:
        # The newest runs may be the parents of sweeps, which trained nothing.
        for run in client.search_runs(experiments, order_by=order, max_results=_RUNS_SEARCHED):
            if run.data.tags.get("runner.kind") != "sweep":
                return run
    # A quote would end the text in MLflow's filter; neither ids nor the names that we give have one.
    text = which.replace("'", "")
    by_name = client.search_runs(experiments, f"attributes.run_name = '{text}'", order_by=order, max_results=1)
    # Two results show that a start is ambiguous.
    by_id = client.search_runs(experiments, f"attributes.run_id LIKE '{text}%'", order_by=order, max_results=2)
    runs = {run.info.run_id: run for run in [*by_name, *by_id]}
    try:
        return runs[named(which, {run_id: run.info.run_name for run_id, run in runs.items()})]
    except LookupError as error:
        raise ConfigError(f"{key}{which}: {error}; list the runs with python -m runner.runs") from error


def history(client: MlflowClient, run_id: str, metric: str) -> list[tuple[int, float]]:
    """Returns a metric's points as (step, value), by step."""
    points = client.get_metric_history(run_id, metric)
    return sorted((point.step, recorded(point.value)) for point in points)


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


def judged_by(records: Sequence[RunRecord]) -> str:
    """Returns the metric that runs are compared by unless another one is named."""
    return metrics.default({name.removeprefix(metrics.EVAL): better for name, better in directions(records).items()})


def higher_is_better(metric: str, records: Sequence[RunRecord] = ()) -> bool:
    """Returns whether the runs' tasks say so of a metric of any split."""
    name = metric.rpartition("/")[2]
    return directions(records).get(f"{metrics.EVAL}{name}") == metrics.MAXIMIZE
