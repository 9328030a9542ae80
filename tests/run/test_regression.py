"""R2 of targets far from zero, from the command line: scikit-learn's on each engine and mesh."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sklearn

from tests import forks

ROOT = Path(__file__).parents[2]
LIBRARIES = {"jax": "jax", "keras_dtensor": "tensorflow"}
# A model that answers a constant plus `x`, which is then known for each engine: nothing is trained.
SHIFTED = """
def build(keras, input_shape, num_classes, bias):
    start = keras.initializers.Constant(bias)
    head = keras.layers.Dense(num_classes, kernel_initializer="ones", bias_initializer=start)
    return keras.Sequential([keras.Input(input_shape), head])
"""


@pytest.mark.parametrize(
    ("engine", "mesh", "microbatches"),
    [("jax", "batch4_model2", 2), ("jax", "single", 1), ("keras_dtensor", "batch8", 2)],
)
def test_r2_of_targets_far_from_zero_is_scikit_learns(
    tmp_path: Path, engine: str, mesh: str, microbatches: int
) -> None:
    (tmp_path / "shifted.py").write_text(SHIFTED)
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (100, 1)).astype(np.float32)
    targets = {
        "near": (1e6 + rng.uniform(-0.8, 0.8, 100)).astype(np.float32),
        "seconds": 1_700_000_000 + rng.integers(-900, 900, 100),
    }
    for name, y in targets.items():
        folder = tmp_path / name
        folder.mkdir()
        for split in ("train", "test"):
            np.savez(folder / f"{split}.npz", x=x, y=y)
        bias = 1e6 if name == "near" else 0.0
        command = [
            sys.executable, "-m", "runner", f"engine={engine}", f"mesh={mesh}", "tracking=none",
            "dataset=arrays", f"dataset.path={name}", "dataset.standardize=false", "dataset.batch_size=48",
            "dataset.eval_batch_size=40",
            "model=custom", "model._target_=shifted.build", f"+model.bias={bias}", "task=regression",
            f"trainer.accumulate_steps={microbatches}", "trainer.epochs=1", "trainer.checkpoint.enabled=false",
            "optimizer=sgd", "optimizer.learning_rate=1e-30", f"hydra.run.dir={folder / 'run'}",
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
        done = forks.run(command, library=LIBRARIES[engine], cwd=tmp_path, env=environment, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        found = json.loads((folder / "run" / "summary.json").read_text())["eval_r2"]
        wanted = sklearn.r2_score(y.astype(np.float64), (x[:, 0] + np.float32(bias)).astype(np.float64))
        assert found == pytest.approx(wanted, rel=1e-5), name
