"""Two runs side by side: the keys in which their configs, results and plans differ."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from runner.compare.records import RunRecord
from runner.compare.render import Sheet
from runner.config.convert import flatten
from runner.errors import ConfigError
from runner.tracking.records import as_text

_NONE = "-"
# of so many one is no sweep's
_LATEST = "latest"
_NEWEST = 1000
_PLAN = "plan.json"
# Where a plan was made and how it is laid out as a file, rather than what it says.
_PLAN_PARTS = ("axes", "batch_size", "totals", "flops_per_device", "compute_seconds")


def config_diff(first: RunRecord, second: RunRecord) -> Sheet:
    """Returns the params in which two runs differ."""
    return _sheet(first, second, "config", first.params, second.params)


def metric_diff(first: RunRecord, second: RunRecord) -> Sheet:
    """Returns the last values of the metrics that either run has."""
    left, right = ({key: f"{value:.6g}" for key, value in one.metrics.items()} for one in (first, second))
    return _sheet(first, second, "metric", left, right)


def plan_diff(client: MlflowClient, first: RunRecord, second: RunRecord) -> Sheet | None:
    """Returns in what two runs' plans differ; None where either has no plan.

    Args:
      client: an `mlflow.MlflowClient`.
      first: a run.
      second: another.
    """
    plans = [_plan(client, one.run_id) for one in (first, second)]
    if plans[0] is None or plans[1] is None:
        return None
    return _sheet(first, second, "plan", plans[0], plans[1])


def find_run(client: MlflowClient, which: str, key: str = "--diff ") -> Run:
    """Returns the run that an id, the start of one, a name or `latest` means; of runs of one name the latest.

    Args:
      client: an `mlflow.MlflowClient`.
      which: as typed.
      key: what stands before it, for the refusal.

    Raises:
      ConfigError: there is none, or an id's start fits several.
    """
    experiments = [one.experiment_id for one in client.search_experiments()]
    order = ["attributes.start_time DESC"]
    if which == _LATEST:
        newest = client.search_runs(experiments, order_by=order, max_results=_NEWEST)
        if runs := [run for run in newest if run.data.tags.get("runner.kind") != "sweep"]:
            return runs[0]
    quoted = which.replace("'", "")
    for field in ("run_id", "run_name"):
        pattern = f"{quoted}%" if field == "run_id" else quoted
        found = client.search_runs(experiments, f"attributes.{field} LIKE '{pattern}'", order_by=order, max_results=2)
        if len(found) > 1 and field == "run_id":
            raise ConfigError(f"{key}{which}: several runs' ids start so; type more of it")
        if found:
            return found[0]
    raise ConfigError(f"{key}{which}: no run has this id or name; see python -m runner.compare")


def _sheet(
    first: RunRecord, second: RunRecord, title: str, left: Mapping[str, str], right: Mapping[str, str]
) -> Sheet:
    keys = sorted(key for key in {*left, *right} if left.get(key) != right.get(key))
    rows = tuple((key, left.get(key, _NONE), right.get(key, _NONE)) for key in keys)
    names = [one.name if first.name != second.name else f"{one.name} {one.run_id[:8]}" for one in (first, second)]
    return Sheet((title, *names), rows)


def _plan(client: MlflowClient, run_id: str) -> dict[str, str] | None:
    names = {item.path for item in client.list_artifacts(run_id)}
    if _PLAN not in names:
        return None
    with tempfile.TemporaryDirectory() as folder:
        content = json.loads(Path(client.download_artifacts(run_id, _PLAN, folder)).read_text())
    leaves: dict[str, object] = {}
    for part in _PLAN_PARTS:
        leaves |= flatten(content.get(part), part)
    for one in content.get("variables", []):
        for key in ("spec", "bytes_per_device", "moved_bytes"):
            leaves[f"{one.get('path')} {key}"] = one.get(key)
    for one in content.get("traffic", []):
        leaves[f"{one.get('phase')} {one.get('kind')} {one.get('axis')} bytes"] = one.get("bytes")
    return {key: as_text(value) for key, value in leaves.items()}
