"""Two runs side by side: how their configs, results and plans differ."""

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
from runner.tracking.named import LATEST, named
from runner.tracking.paging import experiment_ids
from runner.tracking.records import as_text

_MISSING = "-"
# Runs among which the latest is searched. A sweep's parent run is skipped, so the newest run alone is not enough.
_RUNS_SEARCHED = 1000
_PLAN = "plan.json"
# The parts of a plan that say something about the run, and not where and how the plan was made.
_PLAN_PARTS = ("axes", "batch_size", "totals", "flops_per_device", "compute_seconds")
_VARIABLE_PARTS = ("spec", "bytes_per_device", "moved_bytes")


def config_diff(first: RunRecord, second: RunRecord) -> Sheet:
    """Returns the params in which two runs differ."""
    return _sheet(first, second, "config", first.params, second.params)


def metric_diff(first: RunRecord, second: RunRecord) -> Sheet:
    """Returns the last values of the metrics in which two runs differ."""
    return _sheet(first, second, "metric", _metrics_as_text(first), _metrics_as_text(second))


def _metrics_as_text(record: RunRecord) -> dict[str, str]:
    return {name: f"{value:.6g}" for name, value in record.metrics.items()}


def plan_diff(client: MlflowClient, first: RunRecord, second: RunRecord) -> Sheet | None:
    """Returns the values in which two runs' plans differ; None if either has no plan.

    Args:
      client: MLflow's client.
      first: a run.
      second: another.
    """
    first_plan = _plan(client, first.run_id)
    second_plan = _plan(client, second.run_id)
    if first_plan is None or second_plan is None:
        return None
    return _sheet(first, second, "plan", first_plan, second_plan)


def find_run(client: MlflowClient, which: str, key: str = "--diff ") -> Run:
    """Finds a run by its id, the start of its id, its name or `latest`.

    See `runner.tracking.named`.

    Args:
      client: MLflow's client.
      which: as typed.
      key: text before it in an error, such as the option's name.

    Raises:
      ConfigError: no run matches, or an id's start matches several.
    """
    experiments = list(experiment_ids(client).values())
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
        raise ConfigError(f"{key}{which}: {error}; list the runs with python -m runner.compare") from error


def _sheet(
    first: RunRecord, second: RunRecord, title: str, first_values: Mapping[str, str], second_values: Mapping[str, str]
) -> Sheet:
    rows = []
    for key in sorted({*first_values, *second_values}):
        if first_values.get(key) != second_values.get(key):
            rows.append((key, first_values.get(key, _MISSING), second_values.get(key, _MISSING)))
    names = [first.name, second.name]
    if first.name == second.name:
        # Only their ids distinguish these runs.
        names = [f"{first.name} {first.run_id[:8]}", f"{second.name} {second.run_id[:8]}"]
    return Sheet((title, *names), tuple(rows))


def _plan(client: MlflowClient, run_id: str) -> dict[str, str] | None:
    """Returns a run's plan, flat; None if it has none."""
    artifacts = {artifact.path for artifact in client.list_artifacts(run_id)}
    if _PLAN not in artifacts:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(client.download_artifacts(run_id, _PLAN, folder))
        content = json.loads(path.read_text())
    values: dict[str, object] = {}
    for part in _PLAN_PARTS:
        values |= flatten(content.get(part), part)
    for variable in content.get("variables", []):
        for part in _VARIABLE_PARTS:
            values[f"{variable.get('path')} {part}"] = variable.get(part)
    for transfer in content.get("traffic", []):
        name = f"{transfer.get('phase')} {transfer.get('kind')} {transfer.get('axis')} bytes"
        values[name] = transfer.get("bytes")
    return dict(zip(values, map(as_text, values.values()), strict=True))
