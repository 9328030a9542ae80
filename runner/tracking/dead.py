"""Marks runs that still say RUNNING although their process is gone."""

from __future__ import annotations

import platform
from collections.abc import Callable

from mlflow import MlflowClient
from mlflow.entities import Run

from runner.tracking import page
from runner.tracking.hidden import tags_of
from runner.tracking.process import PID, is_gone
from runner.tracking.store import Store, search

NOTE = "runner.note"


def mark_dead_runs(store: Store, warn: Callable[[str], None]) -> None:
    """Marks runs of this machine KILLED whose process is gone, with their last point as their end.

    Args:
      store: every active experiment in it is searched.
      warn: shows one line to the user, for each run that is marked.
    """
    experiments = [one.experiment_id for one in store.client.search_experiments()]
    for run in search(store, experiments, "attributes.status = 'RUNNING'"):
        if is_gone(tags_of(run.data.tags)):
            _mark(store.client, run)
            warn(f"run {run.info.run_name} ({run.info.run_id}) was left RUNNING by a process that is gone: now KILLED")


def _mark(client: MlflowClient, run: Run) -> None:
    run_id = run.info.run_id
    pid = tags_of(run.data.tags)[PID]
    why = f"ended without a word: process {pid} on {platform.node()} was gone"
    client.set_tag(run_id, NOTE, why)
    if (told := page.ended_without_a_word(run.data.tags.get(page.TAG), why)) is not None:
        client.set_tag(run_id, page.TAG, told)
    points = client.get_metric_history(run_id, next(iter(run.data.metrics))) if run.data.metrics else []
    client.set_terminated(run_id, "KILLED", max((one.timestamp for one in points), default=run.info.start_time))
