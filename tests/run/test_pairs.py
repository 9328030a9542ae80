"""Embeddings of `task=pairs` from their command lines: trained, resumed, evaluated, exported and planned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.optim.paths import is_variable
from tests import forks
from tests.processes.running import differences, last

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
LIBRARIES = {"jax": "jax", "keras_dtensor": "tensorflow"}
TOWERS = """
def build(keras, inputs, outputs):
    tensors = {name: keras.Input(spec.shape, name=name) for name, spec in inputs.items()}
    query = keras.layers.Dense(16, "tanh", name="query_hidden")(tensors["left"])
    candidate = keras.layers.Dense(16, "tanh", name="candidate_hidden")(tensors["right"])
    query = keras.layers.Dense(8, name="query_head")(query)
    return keras.Model(tensors, {"query": query, "candidate": keras.layers.Dense(8, name="candidate_head")(candidate)})
"""
# The last batch of an epoch has padding: 163 examples are left for the training.
DATA = ["dataset=arrays", "dataset.path=pairs.npz", "dataset.batch_size=32", "dataset.remainder=pad"]
KINDS = {
    "in_batch_softmax": [
        *("model=custom", "model._target_=towers.build", "task.inputs=[left,right]", "task.candidate_id=item"),
        *("task.symmetric=true", "task.top_k=5"),
    ],
    "triplet": ["model=mlp", "model.hidden=[16]", "task.inputs=[right]", "task.target=item", "task.units=8"],
}


def start(folder: Path, engine: str, module: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the runner and checks that it ends well."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "COLUMNS": "160"}
    kept = [f"trainer.checkpoint.folder={folder / 'checkpoints'}", f"hydra.run.dir={folder / 'run'}", "tracking=none"]
    command = [sys.executable, "-m", module, *overrides, *kept]
    done = forks.run(command, library=LIBRARIES[engine], cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def written(folder: Path) -> Path:
    """Makes a folder with two arrays whose rows belong together, and a model of two towers."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    item = rng.integers(0, 40, 203).astype(np.int32)
    left = rng.normal(size=(40, 6)).astype(np.float32)[item]
    right = left + 0.3 * rng.normal(size=left.shape).astype(np.float32)
    np.savez(folder / "pairs.npz", left=left, right=right, item=item)
    (folder / "towers.py").write_text(TOWERS)
    return folder


@pytest.mark.parametrize("loss", list(KINDS))
@pytest.mark.parametrize("engine", list(LIBRARIES))
def test_embeddings_are_trained_resumed_evaluated_exported_and_planned(tmp_path: Path, engine: str, loss: str) -> None:
    chosen = [*DATA, f"engine={engine}", "task=pairs", f"task.loss={loss}", *KINDS[loss], "mesh=batch4_model2"]
    straight, again = written(tmp_path / "straight"), written(tmp_path / "again")
    start(straight, engine, "runner", *chosen, "trainer.epochs=2")
    start(again, engine, "runner", *chosen, "trainer.epochs=1")
    start(again, engine, "runner", "resume=latest", "trainer.epochs=2")
    assert differences(last(straight), last(again)) == {}
    trained = json.loads((straight / "run" / "summary.json").read_text())
    start(again, engine, "runner.evaluate", "run=latest", "mesh=batch8")
    evaluated = json.loads((again / "run" / "evaluate.json").read_text())
    # Another mesh adds up in another order.
    assert evaluated["loss"] == pytest.approx(trained["eval_loss"], rel=1e-5)
    assert evaluated["top_1"] == pytest.approx(trained["eval_top_1"])
    exported = start(again, engine, "runner.export", "run=latest", "export.folder=exported")
    assert "largest difference" in exported.stdout
    assert (again / "exported" / "model.keras").is_file()
    start(again, engine, "runner.plan", "run=latest")
    planned = json.loads((again / "run" / "plan.json").read_text())
    assert {variable["path"] for variable in planned["variables"]} == set(filter(is_variable, last(again)))
