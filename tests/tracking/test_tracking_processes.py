import subprocess
import sys

import pytest
from mlflow import MlflowClient

from tests import forks

pytestmark = pytest.mark.slow


# The bare bones of a run: the store, its root, how to end.
RUN = """
import os, sys
from pathlib import Path
from runner.config.schema import TrackingConfig
from runner.tracking import RunSpec, open_tracker

uri, root, end = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
tracker = open_tracker(TrackingConfig(uri=uri, experiment="tests"), RunSpec(end, {"a": 1}), root, root=root)
for step in range(10):
    tracker.log_metrics(step, {"loss": float(step)})
if end == "die":
    tracker._writer.flush(30)
    os._exit(9)
if end != "leave":
    tracker.finish("FINISHED")
"""


def _start(uri, root, end):
    command = [sys.executable, "-c", RUN, uri, str(root), end]
    return forks.Popen(command, library=forks.JAX, cwd=forks.ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.nightly
def test_four_first_runs_at_once_on_an_empty_store_all_succeed(tmp_path):
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    workers = [_start(uri, tmp_path, "finish") for _ in range(4)]
    said = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0], said
    assert said == [""] * 4
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 4
    assert all(len(client.get_metric_history(run.info.run_id, "loss")) == 10 for run in runs)


def test_a_run_whose_process_died_is_marked_and_a_live_one_is_not(opener, uri, tmp_path, capsys):
    live = opener(uri)
    dead = _start(uri, tmp_path, "die")
    dead.communicate(timeout=120)
    assert dead.returncode == 9
    client = MlflowClient(tracking_uri=uri)
    opener(uri)
    runs = {run.info.run_name: run for run in client.search_runs([client.get_run(live.run_id).info.experiment_id])}
    run = runs["die"]
    assert run.info.status == "KILLED"
    assert "ended without recording a status" in run.data.tags["runner.ended"]
    last = client.get_metric_history(run.info.run_id, "loss")[-1].timestamp
    assert run.info.end_time == last
    assert client.get_run(live.run_id).info.status == "RUNNING"
    assert f"run die ({run.info.run_id}) had the status RUNNING, but its process is gone" in capsys.readouterr().err


def test_a_program_that_ends_without_finish_is_failed_and_keeps_its_points(uri, tmp_path):
    worker = _start(uri, tmp_path, "leave")
    worker.communicate(timeout=120)
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.info.status == "FAILED"
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 10
