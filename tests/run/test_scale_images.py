"""`task.scale_images` from the command line: a model that rescales bytes gets bytes, everywhere a run is read."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.commands import ran

# What the model computes is known without it: nothing is trained.
MODELS = """
import numpy as np


def build(keras, input_shape, num_classes, first):
    weights = np.random.default_rng(1).normal(size=(int(np.prod(input_shape)), num_classes))
    start = keras.initializers.Constant(weights.astype("float32") / 8)
    image = keras.Input(input_shape)
    x = keras.layers.Rescaling(first)(keras.layers.RandomFlip(seed=0)(image))
    x = keras.layers.Flatten()(x)
    return keras.Model(image, keras.layers.Dense(num_classes, kernel_initializer=start)(x))
"""


def start(folder: Path, module: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the runner and checks that it ends well."""
    kept = [f"trainer.checkpoint.folder={folder / 'checkpoints'}", f"hydra.run.dir={folder / 'run'}", "tracking=none"]
    return ran(folder, module, *overrides, *kept, library=forks.JAX, COLUMNS="160")


def prepare(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Writes the model and its data, and returns the images and labels."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (48, 4, 4, 3), dtype=np.uint8)
    label = rng.integers(0, 3, 48).astype(np.int32)
    (folder / "models.py").write_text(MODELS)
    (folder / "pictures").mkdir()
    for split in ("train", "test"):
        np.savez(folder / "pictures" / f"{split}.npz", image=image, label=label)
    return image, label


def loss(image: np.ndarray, label: np.ndarray, factor: float) -> float:
    """Returns the mean cross-entropy of the model for images times a factor."""
    weights = np.random.default_rng(1).normal(size=(48, 3)).astype(np.float32) / 8
    logits = image.reshape(48, 48).astype(np.float64) * factor @ weights
    highest = logits.max(1)
    entropy = np.log(np.exp(logits - highest[:, None]).sum(1)) + highest - logits[np.arange(48), label]
    return float(entropy.mean())


def options(mesh: str) -> list[str]:
    return [
        "engine=jax", f"mesh={mesh}", "dataset=arrays", "dataset.path=pictures", "dataset.batch_size=16",
        "dataset.holdout=0",
        "dataset.eval_batch_size=16", "model=custom", "model._target_=models.build", "task.classes=3",
        "trainer.epochs=1", "optimizer=sgd", "optimizer.learning_rate=1e-30",
    ]  # fmt: skip


# A model that rescales by a layer is the row `rescaling_of_bytes` of `tests/parity`.
def test_bytes_are_divided_by_255_if_asked_for_although_the_model_rescales(tmp_path: Path) -> None:
    image, label = prepare(tmp_path)
    own = [*options("single"), f"+model.first={1 / 127.5}", "task.scale_images=true"]
    done = start(tmp_path, "runner", *own, "trainer.checkpoint.enabled=false")
    assert "images: bytes divided by 255 (task.scale_images=true)" in done.stdout
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["eval_loss"]
    assert found == pytest.approx(loss(image, label, 1 / 255 / 127.5), rel=1e-4)


@pytest.mark.nightly
def test_every_command_reads_a_run_whose_model_rescales(tmp_path: Path) -> None:
    image, label = prepare(tmp_path)
    own = [*options("single"), f"+model.first={1 / 255}"]
    wanted = pytest.approx(loss(image, label, 1 / 255), rel=1e-4)
    start(tmp_path, "runner", *own)
    resumed = start(tmp_path, "runner", "resume=latest", "trainer.epochs=2", "mesh=batch8")
    assert "images: bytes of 0 to 255, which the model rescales" in resumed.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["eval_loss"] == wanted
    start(tmp_path, "runner.evaluate", "run=latest", "mesh=batch8")
    assert json.loads((tmp_path / "run" / "evaluate.json").read_text())["loss"] == wanted
    # The export compares its answers to the run's, for the same bytes.
    start(tmp_path, "runner.export", "run=latest", f"export.folder={tmp_path / 'export'}")
    start(tmp_path, "runner.verify", *own, "mesh=batch8", "optimizer.learning_rate=0.1", "verify.steps=4")
