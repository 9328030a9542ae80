"""Four jobs of a sweep at once, some 2,000 points each: none missing, none twice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.stores import store_in

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
EPOCHS, STEPS = 91, 91 * 22  # digits has 22 batches of 64


def test_four_jobs_at_once_lose_no_point_and_store_none_twice(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    store = store_in(tmp_path)
    arguments = [sys.executable, "-m", "runner", "-m", "dataset=digits", "trainer.log_model=false"]
    arguments += [f"trainer.epochs={EPOCHS}", f"trainer.evaluate_every={EPOCHS}", "trainer.log_every_steps=1"]
    arguments += ["trainer.seed=1,2,3,4", "hydra.launcher.max_parallel=4", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": store}
    done = forks.run(arguments, cwd=tmp_path, env=environment, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("runner")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], "tags.mlflow.parentRunId != ''")
    assert {run.info.run_name for run in found} == {f"seed={seed}" for seed in (1, 2, 3, 4)}
    for run in found:
        assert run.info.status == "FINISHED"
        points = client.get_metric_history(run.info.run_id, "train/loss")
        assert sorted(point.step for point in points) == list(range(1, STEPS + 1))
        names = {item.path for item in client.list_artifacts(run.info.run_id)}
        assert {"config.yaml", "curves.png", "summary.json"} <= names
