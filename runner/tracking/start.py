"""Creates a run in an open store, or resumes one; marks runs whose process is gone."""

from __future__ import annotations

import getpass
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import starmap
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking.context.system_environment_context import SystemEnvironmentContext

from runner.cluster import process
from runner.host import session
from runner.task.metrics import EPOCH, EVAL, default
from runner.tracking.base import ENDED, RunSpec
from runner.tracking.location import VIEW
from runner.tracking.mlflow_setup import reason, warn
from runner.tracking.records import DESCRIPTION, clean_params, clean_tags
from runner.tracking.send import sync_run
from runner.tracking.store import Store, search, unusable

# MLflow rejects a `log_batch` of more params.
_PARAMS_PER_CALL = 100
_PARENT_TAG = "mlflow.parentRunId"
_RESUMED = "resumed."
_SECTION = "training and evaluation"
# MLflow rejects a tag of an experiment that is longer than 5,000 characters, which are some 20 charts.
_MOST_CHARTS = 12
_RUN_NAME = "tracking.run_name"
# A file system that hangs must not keep a run from starting: the tag of git is only information.
_GIT_TIMEOUT_S = 5


def create(store: Store, spec: RunSpec, root: Path) -> str:
    """Creates a run, with git's commit of `root` among its tags; returns its id. TrackingError: the store failed."""
    tags = {**_source_tags(root), **spec.tags, **process.identity()}
    if spec.parent_run_id:
        tags[_PARENT_TAG] = spec.parent_run_id
    if spec.description:
        tags[DESCRIPTION] = spec.description
    try:
        # The tags are part of the call, so a run never exists without the identity of its process.
        run = store.client.create_run(store.experiment_id, tags=clean_tags(tags), run_name=spec.name)
        run_id = str(run.info.run_id)
        if spec.metrics:
            # MLflow's comparison of runs begins with the metric that it was sent first, else one of the machine.
            first = Metric(default(spec.metrics), math.nan, int(time.time() * 1000), 0)
            store.client.log_batch(run_id, metrics=[first], synchronous=True)
            tag = f"mlflow.sharedViewState.{VIEW}"
            store.client.set_experiment_tag(store.experiment_id, tag, _view(list(spec.metrics)))
        params = list(starmap(Param, clean_params(spec.params).items()))
        for start in range(0, len(params), _PARAMS_PER_CALL):
            batch = params[start : start + _PARAMS_PER_CALL]
            store.client.log_batch(run_id, params=batch, synchronous=True)
    except Exception as error:
        raise unusable(store.uri, f"creating a run failed: {reason(error)}") from error
    return run_id


def _view(names: Sequence[str]) -> str:
    """Returns MLflow's form of a shared view: first a chart per metric, of training and evaluations together."""
    charts = []
    for name in names[:_MOST_CHARTS]:
        keys = [f"{EPOCH}{name}", f"{EVAL}{name}"]
        chart = {"uuid": name, "type": "LINE", "metricSectionId": _SECTION, "metricKey": keys[1], "deleted": False}
        # By default, MLflow smooths the lines of a shared view, in which a NaN counts as 0.
        chart |= {"useGlobalLineSmoothing": True, "useGlobalXaxisKey": True}
        charts.append({**chart, "selectedMetricKeys": keys, "runsCountToCompare": 10})
    view = {
        "compareRunCharts": charts,
        "compareRunSections": [{"uuid": _SECTION, "name": _SECTION, "display": True, "isReordered": True}],
        "isAccordionReordered": True,
        "globalLineChartConfig": {"lineSmoothness": 0, "xAxisKey": "step"},
    }
    return json.dumps(view)


def resume(store: Store, run_id: str, spec: RunSpec) -> str:
    """Resumes a run: its status becomes RUNNING and its process this one. Returns the id of its experiment.

    What an earlier process could not store is stored first. A param keeps its first value; one that has changed is
    recorded as the tag `resumed.<param>`, for as long as it is not the recorded one again. A changed
    `tracking.run_name` renames the run.
    """
    client = store.client
    params = clean_params(spec.params)
    try:
        run = client.get_run(run_id)
        if str(run.info.experiment_id) != store.experiment_id:
            warn(f"tracking.experiment: run {run_id} stays in the experiment that it began in; MLflow can't move it")
        sync_run(store, run, warn)
        recorded = run.data.params
        changed: dict[str, str] = {}
        for key, value in (clean_params(spec.config) | params).items():
            # A param that only the first start listed is compared too.
            is_listed = key in params or key in recorded
            if is_listed and recorded.get(key) != value:
                changed[f"{_RESUMED}{key}"] = value
        client.update_run(run_id, status="RUNNING")
        # Compared with the last start: a run that was renamed in MLflow keeps that name.
        last_name = run.data.tags.get(f"{_RESUMED}{_RUN_NAME}", recorded.get(_RUN_NAME))
        if params.get(_RUN_NAME, last_name) != last_name:
            client.update_run(run_id, name=spec.name)
        new_tags = clean_tags({**spec.tags, **process.identity(), **changed})
        for key, value in new_tags.items():
            client.set_tag(run_id, key, value)
        for key in run.data.tags:
            if key == ENDED or (key.startswith(_RESUMED) and key not in new_tags):
                client.delete_tag(run_id, key)
    except Exception as error:
        raise unusable(store.uri, f"resuming run {run_id} failed: {reason(error)}") from error
    return str(run.info.experiment_id)


def _source_tags(root: Path) -> dict[str, str]:
    """Returns MLflow's own tags of the source, and those of the environment."""
    command = f"python -m {session.command_module()}"
    if Path("".join(sys.orig_argv[1:2])).name == "runner":  # the installed command
        command = session.command_module().replace(".", " ")
    tags = {"mlflow.source.name": command, "mlflow.source.type": "LOCAL"}
    environment = SystemEnvironmentContext()
    if environment.in_context():
        tags |= environment.tags()
    # In containers, a user id may have no name.
    with suppress(OSError, KeyError, ImportError):
        tags["mlflow.user"] = getpass.getuser()
    if (root / ".git").exists():
        get_commit = ["git", "-C", str(root), "rev-parse", "HEAD"]
        with suppress(OSError, subprocess.SubprocessError):  # no git, or no commit yet
            commit = subprocess.check_output(get_commit, text=True, stderr=subprocess.DEVNULL, timeout=_GIT_TIMEOUT_S)
            tags["mlflow.source.git.commit"] = commit.strip()
    return tags


def mark_dead_runs(store: Store, warn: Callable[[str], None]) -> None:
    """Marks runs of this machine as KILLED at their last point if their process is gone, in any active experiment."""
    client = store.client
    for found in search(store, None, "attributes.status = 'RUNNING'"):
        if not process.is_gone(found.data.tags):
            continue
        # What it could not store may include its true status.
        sync_run(store, found, warn)
        run = client.get_run(found.info.run_id)
        if run.info.status != "RUNNING":
            continue
        run_id = run.info.run_id
        pid = run.data.tags[process.PID]
        client.set_tag(run_id, ENDED, f"process {pid} on {platform.node()} ended without recording a status")
        # The last point of each metric, which `run.data.metrics` has without its time. No history is read.
        times = [point.timestamp for point in run.data.to_proto().metrics]
        # Last, so that a run whose other changes fail is marked at the next start.
        client.set_terminated(run_id, "KILLED", max([run.info.start_time, *times]))
        warn(
            f"run {run.info.run_name} ({run_id}) had the status RUNNING, but its process is gone; changed it to KILLED"
        )
