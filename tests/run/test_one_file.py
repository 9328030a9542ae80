"""A dataset, layers made at import and a builder in one file that imports Keras at its top, through the commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.commands import ran

pytestmark = pytest.mark.slow

ONE_FILE = """
import random

import keras
import numpy as np

DROPOUT = keras.layers.Dropout(0.3)
FLIP = keras.Sequential([keras.layers.RandomFlip("horizontal")])
HIDDEN = keras.layers.Dense(8, name="hidden")
HE = keras.initializers.HeNormal()
SCALE = np.random.uniform(0.5, 1.5) * random.uniform(0.5, 1.5)


class Stripes:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        label = row % 4
        image = np.random.default_rng(row).integers(0, 80, (8, 8, 1), dtype=np.uint8)
        image[2 * label : 2 * label + 2] += 100
        return {"image": image, "label": np.int32(label)}


def load():
    return {"train": Stripes(96), "test": Stripes(32)}


def build(given, input_shape, num_classes):
    inputs = keras.Input(input_shape)
    x = keras.layers.Flatten()(FLIP(inputs)) * SCALE
    x = DROPOUT(HIDDEN(x)) * np.random.uniform(0.5, 1.5)
    x = keras.layers.Dense(4 + np.random.randint(9), kernel_initializer=HE, name="drawn")(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="head")(x))


def of_own_keras(input_shape, num_classes):
    return build(None, input_shape, num_classes)


def of_given_keras(keras, input_shape, num_classes):
    layers = [keras.layers.Flatten(), keras.layers.Dense(num_classes, name="head")]
    return keras.Sequential([keras.Input(input_shape), *layers])
"""
DATA = ["dataset=custom", "dataset._target_=one_file.load", "model=custom", "task.classes=4", "dataset.batch_size=16"]
RUN = ["mesh.axes={batch:2,model:2}", "trainer.epochs=1", "trainer.progress=none", "trainer.log_model=false"]
OWN_LAYERS = ["engine=jax", "model._target_=one_file.of_own_keras"]


def command(folder: Path, module: str, *arguments: str, backend: str | None = None) -> str:
    """Runs a command in a process that has imported nothing, and returns what it printed."""
    folder.mkdir(exist_ok=True)
    (folder / "one_file.py").write_text(ONE_FILE)
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    variables |= {"KERAS_BACKEND": backend} if backend else {}
    words = (*arguments, f"trainer.checkpoint.folder={folder / 'checkpoints'}")
    return ran(folder, module, *words, **variables).stdout


def trained(folder: Path, backend: str | None = None) -> Any:
    """Returns the summary of a training on JAX."""
    command(folder, "runner", *DATA, *RUN, *OWN_LAYERS, f"hydra.run.dir={folder / 'run'}", backend=backend)
    return json.loads((folder / "run" / "summary.json").read_text())


@pytest.fixture(autouse=True)
def started_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process has imported Keras already."""
    monkeypatch.setenv(*forks.REAL)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)


@pytest.mark.nightly
def test_it_trains_on_jax_and_an_evaluation_rebuilds_the_same_model(tmp_path: Path) -> None:
    summary = trained(tmp_path)
    out = tmp_path / "evaluated"
    command(tmp_path, "runner.evaluate", "run=latest", f"hydra.run.dir={out}")
    evaluated = json.loads((out / "evaluate.json").read_text())
    assert evaluated["loss"] == summary["test_loss"]


@pytest.mark.nightly
def test_it_is_planned_and_shown_and_exported_and_resumed(tmp_path: Path) -> None:
    command(tmp_path, "runner.plan", *DATA, *RUN, *OWN_LAYERS, f"hydra.run.dir={tmp_path / 'plan'}")
    command(tmp_path, "runner.data", *DATA, *RUN, *OWN_LAYERS, f"hydra.run.dir={tmp_path / 'data'}")
    trained(tmp_path)
    command(tmp_path, "runner.export", "run=latest", f"export.folder={tmp_path / 'export'}")
    assert (tmp_path / "export" / "saved_model").is_dir()
    command(tmp_path, "runner", "resume=latest", "trainer.epochs=2", f"hydra.run.dir={tmp_path / 'resumed'}")


@pytest.mark.nightly
def test_on_dtensor_a_layer_of_keras_3_made_at_import_leaves_the_mesh_its_devices(tmp_path: Path) -> None:
    settings = [*DATA, *RUN, "engine=keras_dtensor", "model._target_=one_file.of_given_keras", "tracking=none"]
    command(tmp_path, "runner", *settings, f"hydra.run.dir={tmp_path / 'run'}")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval_loss"] > 0
