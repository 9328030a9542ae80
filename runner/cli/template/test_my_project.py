"""Tests of this project: python -m pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import my_data
import numpy as np

HERE = Path(__file__).parent


def test_the_data_is_the_same_for_a_seed_and_another_for_another() -> None:
    one, same, other = (my_data.load(size=50, arms=3, noise=0.02, seed=seed) for seed in (0, 0, 1))
    assert one["train"]["point"].shape == (40, 2)
    assert np.array_equal(one["train"]["point"], same["train"]["point"])
    assert not np.array_equal(one["train"]["point"], other["train"]["point"])


def test_the_experiment_trains(tmp_path: Path) -> None:
    """Two steps of the real thing: the config, the builder, the data, the loss and the metric."""
    small = ["trainer.epochs=1", "trainer.steps_per_epoch=2", "dataset.size=500"]
    beside = ["tracking=none", "trainer.checkpoint.enabled=false", f"hydra.run.dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "runner", "experiment=mine", *small, *beside]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test hits" in done.stdout
