"""Keras's metrics from their command lines: logged, chosen for the best checkpoint, and the same on another mesh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.errors import shown as as_typed
from tests import forks
from tests.task import keras_metric_cases
from tests.task.keras_metric_cases import CLASSES, IGNORED

pytestmark = pytest.mark.nightly

CASES = keras_metric_cases.make()
# A model whose outputs are its inputs: what is compared is then known, and the same for each engine.
IDENTITY = """
def build(keras, inputs, outputs):
    given = {name: keras.Input(spec.shape, name=name) for name, spec in inputs.items()}
    heads = {}
    for name, spec in outputs.by_name.items():
        same = keras.layers.Dense(spec.units, kernel_initializer="identity", use_bias=False, name=name)
        heads[name] = same(given[f"of_{name}"])
    return keras.Model(given, heads)
"""

ROOT = Path(__file__).parents[2]
LIBRARIES = {"jax": "jax"}
MODELS = {"jax": "mlp"}
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
        "task.metrics=[MeanSquaredError,LogCoshError,{MeanAbsoluteError:{weighted:true,name:weighted_mae}}]",
        "task.example_weight=share",
        "trainer.checkpoint.best=eval/mean_squared_error",
    ],
}
NAMES = {
    "classification": ["auc", "top_k_categorical_accuracy", "precision_0.3", "precision_0.7", "f1_score", "mean_io_u"],
    "multilabel": ["precision_0.3", "precision_0.7", "auc", "sensitivity_at_specificity"],
    "regression": ["mean_squared_error", "logcosh", "weighted_mae"],
}


def start(folder: Path, engine: str, module: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the runner and checks that it ends well."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "COLUMNS": "160"}
    kept = [f"trainer.checkpoint.folder={folder / 'checkpoints'}", f"hydra.run.dir={folder / 'run'}", "tracking=none"]
    command = [sys.executable, "-m", module, *overrides, *kept]
    done = forks.run(command, library=LIBRARIES[engine], cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


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


@pytest.mark.parametrize("engine", ["jax"])
def test_metrics_of_two_outputs_are_those_of_kerass_classes(tmp_path: Path, engine: str) -> None:
    """One output has weights of its examples, the other one positions that are not counted."""
    kind, grid = CASES["classification"], CASES["positions"]
    count = len(grid.outputs)
    arrays = {
        "of_kind": kind.outputs[:count],
        "of_grid": grid.outputs,
        "kind": kind.arrays["label"][:count],
        "own": kind.arrays["own"][:count],
        "grid": grid.arrays["label"],
    }
    for split in ("train", "test"):
        (tmp_path / "data").mkdir(exist_ok=True)
        np.savez(tmp_path / "data" / f"{split}.npz", **arrays)
    (tmp_path / "own_model.py").write_text(IDENTITY)
    of_kind = [
        {"Precision": {"top_k": 2, "thresholds": [0.2]}},
        {"AUC": {"weighted": True, "num_thresholds": 20}},
        {"CategoricalCrossentropy": {"label_smoothing": 0.1, "weighted": True}},
        {"F1Score": {"average": "weighted"}},
        {"TopKCategoricalAccuracy": {"k": 3}},
    ]
    of_grid = [
        {"Recall": {"top_k": 2, "class_id": 1}},
        {"AUC": {"thresholds": [0.2, 0.6], "curve": "PRGAIN"}},
        {"IoU": {"target_class_ids": [0, 2], "ignore_class": 1}},
        "CategoricalCrossentropy",
    ]
    outputs = {
        "kind": {
            "name": "classification",
            "classes": 8,
            "example_weight": "own",
            "metrics": of_kind,
        },
        "grid": {"name": "positions", "classes": CLASSES, "ignore_index": IGNORED, "metrics": of_grid},
    }
    start(
        tmp_path,
        engine,
        "runner",
        *["dataset=arrays", "dataset.path=data", "dataset.standardize=false"],
        # The last batch has padding.
        *["dataset.batch_size=16", "dataset.eval_batch_size=16", "mesh=batch2", f"engine={engine}"],
        *["model=custom", "model._target_=own_model.build", "optimizer=sgd", "optimizer.learning_rate=1e-30"],
        *["task=several", f"task.outputs={as_typed(outputs)}", "task.inputs=[of_kind,of_grid]", "trainer.epochs=1"],
    )
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    expected = of_keras(tmp_path, {"kind": of_kind, "grid": of_grid}, count)
    assert len(expected) == len(of_kind) + len(of_grid)
    for name, value in expected.items():
        # Keras adds up and divides in float32.
        assert found[f"eval_{name}"] == pytest.approx(value, rel=1e-5), name


def of_keras(folder: Path, metrics: dict[str, list[Any]], count: int) -> dict[str, float]:
    """Returns Keras's values of the first examples, by `<output>_<metric>`."""
    command = [sys.executable, "-m", "tests.task.keras_metrics_worker", str(folder / "keras.json")]
    command += [json.dumps(metrics), str(count)]
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="jax", cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads((folder / "keras.json").read_text())
    return found
