"""The end of a run whose process is gone is the time of its last point, of whatever metric."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from runner.tracking import dead_runs
from runner.tracking.store import open_store


def test_the_end_is_the_last_point_of_all_metrics(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(uri, "tests")
    client = MlflowClient(uri)
    run = client.create_run(store.experiment_id, start_time=1_000, tags={"mlflow.runner.pid": "1"})
    for key, timestamp in (("a", 2_000), ("b", 9_000), ("b", 7_000), ("c", 3_000)):
        client.log_batch(run.info.run_id, [Metric(key, 1.0, timestamp, timestamp)])
    monkeypatch.setattr(dead_runs, "is_gone", lambda _tags: True)
    lines: list[str] = []
    dead_runs.mark_dead_runs(store, lines.append)
    info = client.get_run(run.info.run_id).info
    assert (info.status, info.end_time, len(lines)) == ("KILLED", 9_000, 1)
