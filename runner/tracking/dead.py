"""Marks runs that still say RUNNING although their process is gone."""

from __future__ import annotations

import platform
from collections.abc import Callable

from mlflow import MlflowClient
from mlflow.entities import Run

from runner.tracking.process import HOST, PID, is_gone
from runner.tracking.store import Store, search

NOTE = "runner.note"


def mark_dead_runs(store: Store, warn: Callable[[str], None]) -> None:
    """Marks runs of this machine KILLED whose process is gone, with their last point as their end.

    Args:
      store: every active experiment in it is searched.
      warn: shows one line to the user, for each run that is marked.
    """
    host = platform.node().replace("'", "")
    experiments = [one.experiment_id for one in store.client.search_experiments()]
    for run in search(store, experiments, f"attributes.status = 'RUNNING' AND tags.`{HOST}` = '{host}'"):
        if is_gone(run.data.tags):
            _mark(store.client, run)
            warn(f"run {run.info.run_name} ({run.info.run_id}) was left RUNNING by a process that is gone: now KILLED")


def _mark(client: MlflowClient, run: Run) -> None:
    run_id, pid = run.info.run_id, run.data.tags[PID]
    client.set_tag(run_id, NOTE, f"ended without a word: process {pid} on {platform.node()} was gone")
    points = client.get_metric_history(run_id, next(iter(run.data.metrics))) if run.data.metrics else []
    client.set_terminated(run_id, "KILLED", max((one.timestamp for one in points), default=run.info.start_time))
