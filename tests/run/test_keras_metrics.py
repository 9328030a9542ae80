"""Keras's metrics from their command lines: logged, chosen for the best checkpoint, and the same on another mesh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
LIBRARIES = {"jax": "jax", "keras_dtensor": "tensorflow", "core_dtensor": "tensorflow"}
MODELS = {"jax": "mlp", "keras_dtensor": "mlp", "core_dtensor": "mlp_core"}
# The last batch of the evaluation has padding.
DATA = ["dataset=arrays", "dataset.path=data.npz", "dataset.batch_size=32", "dataset.eval_batch_size=24"]
TASKS = {
    "classification": [
        "task.target=kind",
        "task.metrics=[AUC,{TopKCategoricalAccuracy:{k:2}},{Precision:{thresholds:[0.3,0.7]}},F1Score,MeanIoU]",
        "trainer.checkpoint.best=eval/auc",
    ],
    "multilabel": [
        "task.target=[red,round,soft]",
        "+task.metrics.Precision.thresholds=[0.3,0.7]",
        "+task.metrics.AUC.multi_label=true",
        "+task.metrics.SensitivityAtSpecificity.specificity=0.5",
        "trainer.checkpoint.best=eval/precision_0.3",
    ],
    "regression": [
        "task.target=size",
        "task.metrics=[MeanSquaredError,LogCoshError,R2Score,{MeanAbsoluteError:{weighted:true,name:weighted_mae}}]",
        "task.example_weight=share",
        "trainer.checkpoint.best=eval/mean_squared_error",
    ],
}
NAMES = {
    "classification": ["auc", "top_k_categorical_accuracy", "precision_0.3", "precision_0.7", "f1_score", "mean_io_u"],
    "multilabel": ["precision_0.3", "precision_0.7", "auc", "sensitivity_at_specificity"],
    "regression": ["mean_squared_error", "logcosh", "r2_score", "weighted_mae"],
}


def start(folder: Path, engine: str, module: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the runner and checks that it ends well."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "COLUMNS": "160"}
    kept = [f"trainer.checkpoint.folder={folder / 'checkpoints'}", f"hydra.run.dir={folder / 'run'}", "tracking=none"]
    command = [sys.executable, "-m", module, *overrides, *kept]
    done = forks.run(command, library=LIBRARIES[engine], cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


@pytest.mark.rotates(every=9)
@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("engine", list(LIBRARIES))
def test_keras_metrics_are_logged_and_equal_on_another_mesh(tmp_path: Path, engine: str, task: str) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(203, 6)).astype(np.float32)
    labels = (inputs[:, :3] + 0.5 * rng.normal(size=(203, 3)) > 0.3).astype(np.int32)
    arrays = {"inputs": inputs, "kind": (inputs[:, 3:].argmax(1)).astype(np.int32)}
    arrays |= {"red": labels[:, 0], "round": labels[:, 1], "soft": labels[:, 2]}
    arrays |= {"size": 2.0 * inputs[:, 0] + inputs[:, 1], "share": rng.uniform(0.1, 2.0, 203).astype(np.float32)}
    np.savez(tmp_path / "data.npz", **arrays)
    model = [f"model={MODELS[engine]}", "model.hidden=[16]"]
    chosen = [*DATA, f"engine={engine}", *model, f"task={task}", "task.inputs=[inputs]", *TASKS[task]]
    start(tmp_path, engine, "runner", *chosen, "mesh=batch4_model2", "layout=fsdp_megatron", "trainer.epochs=2")
    trained = json.loads((tmp_path / "run" / "summary.json").read_text())
    start(tmp_path, engine, "runner.evaluate", "run=latest", "mesh=batch2_model4")
    evaluated = json.loads((tmp_path / "run" / "evaluate.json").read_text())
    for name in NAMES[task]:
        # Another mesh adds up in another order; counts are the same.
        assert evaluated[name] == pytest.approx(trained[f"eval_{name}"], rel=1e-5), name
