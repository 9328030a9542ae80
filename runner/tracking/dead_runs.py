"""Marks runs as KILLED whose status is RUNNING although their process is gone."""

from __future__ import annotations

import platform
from collections.abc import Callable

from mlflow import MlflowClient
from mlflow.entities import Run

from runner.tracking import page
from runner.tracking.hidden import tags_of
from runner.tracking.process import PID, is_gone
from runner.tracking.store import Store, search
from runner.tracking.sync import send_of_run

NOTE = "runner.note"


def mark_dead_runs(store: Store, warn: Callable[[str], None]) -> None:
    """Marks runs of this machine as KILLED at their last point if their process is gone, in any active experiment."""
    for run in search(store, None, "attributes.status = 'RUNNING'"):
        if is_gone(tags_of(run.data.tags)):
            # What it could not store may include its true status.
            send_of_run(store, run, warn)
            if store.client.get_run(run.info.run_id).info.status != "RUNNING":
                continue
            _mark_killed(store.client, run)
            warn(
                f"run {run.info.run_name} ({run.info.run_id}) had the status RUNNING, but its process is gone; "
                "changed it to KILLED"
            )


def _mark_killed(client: MlflowClient, run: Run) -> None:
    run_id = run.info.run_id
    why = f"process {tags_of(run.data.tags)[PID]} on {platform.node()} ended without recording a status"
    client.set_tag(run_id, NOTE, why)
    description = page.killed(run.data.tags.get(page.TAG), why)
    if description is not None:
        client.set_tag(run_id, page.TAG, description)
    # The last point of each metric, which `run.data.metrics` has without its time. No history is read.
    times = [point.timestamp for point in run.data.to_proto().metrics]
    # Last, so that a run whose other changes fail is marked at the next start.
    client.set_terminated(run_id, "KILLED", max([run.info.start_time, *times]))
