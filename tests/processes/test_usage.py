"""What several real processes take of their machine, in the one run that process 0 records."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.stores import store_in

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_each_process_has_points_of_its_own_and_none_twice_where_the_run_goes_on(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    store = store_in(tmp_path)
    kept = [f"trainer.checkpoint.folder={tmp_path / 'checkpoints'}", f"hydra.run.dir={tmp_path / 'run'}"]
    first = ["dataset=digits", "mesh=batch2", "engine=jax", "cluster=local", "trainer.epochs=1"]
    for more in (first, ["resume=latest", "trainer.epochs=2"]):
        arguments = [*more, *kept, "trainer.log_model=false", f"tracking.uri={store}"]
        done = subprocess.run(
            [sys.executable, "-m", "runner", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    client = MlflowClient(store)
    (experiment,) = [each for each in client.search_experiments() if each.name == "runner"]
    (only,) = client.search_runs([experiment.experiment_id])
    for process in range(2):
        for name in ("cpu_percent", "memory_mb"):
            points = client.get_metric_history(only.info.run_id, f"system/process-{process}/{name}")
            steps = Counter(point.step for point in points)
            assert len(steps) >= 2, "of each sitting"
            assert set(steps.values()) == {1}
            assert all(point.value > 0 for point in points)
