"""`task.scale_images` from the command line: a model that rescales bytes gets bytes, everywhere a run is read."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.commands import ran
from tests.nightly import nightly_except

# What the model computes is known without it: nothing is trained. `first` is 0 for a model without preprocessing.
MODELS = """
import numpy as np


def build(keras, input_shape, num_classes, first=0.0, tensors=False):
    weights = np.random.default_rng(1).normal(size=(int(np.prod(input_shape)), num_classes))
    start = keras.initializers.Constant(weights.astype("float32") / 8)
    image = x = keras.Input(input_shape)
    if first:
        cast = (keras.ops if hasattr(keras, "ops") else keras.backend).cast
        rescaled = keras.layers.Rescaling(first)
        if tensors:
            rescaled = keras.layers.Lambda(lambda x: cast(x, "float32") * first)
        # DTensor has no layout for a flip.
        x = rescaled(keras.layers.RandomFlip(seed=0)(x) if hasattr(keras, "ops") else x)
    x = keras.layers.Flatten()(x)
    return keras.Model(image, keras.layers.Dense(num_classes, kernel_initializer=start)(x))
"""


def start(folder: Path, engine: str, module: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the runner and checks that it ends well."""
    kept = [f"trainer.checkpoint.folder={folder / 'checkpoints'}", f"hydra.run.dir={folder / 'run'}", "tracking=none"]
    return ran(folder, module, *overrides, *kept, library=forks.OF_ENGINE[engine], COLUMNS="160")


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


def options(engine: str, mesh: str) -> list[str]:
    return [
        f"engine={engine}", f"mesh={mesh}", "dataset=arrays", "dataset.path=pictures", "dataset.batch_size=16",
        "dataset.holdout=0",
        "dataset.eval_batch_size=16", "model=custom", "model._target_=models.build", "task.classes=3",
        "trainer.epochs=1", "optimizer=sgd", "optimizer.learning_rate=1e-30",
    ]  # fmt: skip


CASES = [
    ("keras_dtensor", "batch8", 1 / 255, "auto", 1 / 255, "bytes of 0 to 255, which the model rescales"),
    ("jax", "single", 0.0, "auto", 1 / 255, "bytes divided by 255, as no first layer rescales them"),
    ("jax", "single", 1 / 127.5, "true", 1 / 255 / 127.5, "bytes divided by 255 (task.scale_images=true)"),
]


# The row `rescaling_of_bytes` of `tests/parity` runs always.
@pytest.mark.parametrize(("engine", "mesh", "first", "chosen", "factor", "said"), nightly_except(CASES[2:], CASES))
def test_a_model_that_rescales_its_images_gets_their_bytes(
    tmp_path: Path, engine: str, mesh: str, first: float, chosen: str, factor: float, said: str
) -> None:
    image, label = prepare(tmp_path)
    # A Lambda of the engine's tensors on one device, a layer of Keras on eight.
    own = [*options(engine, mesh), f"+model.first={first}", f"+model.tensors={mesh == 'single'}"]
    own.append(f"task.scale_images={chosen}")
    done = start(tmp_path, engine, "runner", *own, "trainer.checkpoint.enabled=false")
    assert f"images: {said}" in done.stdout
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["eval_loss"]
    assert found == pytest.approx(loss(image, label, factor), rel=1e-4)


@pytest.mark.nightly
def test_every_command_reads_a_run_whose_model_rescales(tmp_path: Path) -> None:
    engine = "jax"
    image, label = prepare(tmp_path)
    own = [*options(engine, "single"), f"+model.first={1 / 255}"]
    wanted = pytest.approx(loss(image, label, 1 / 255), rel=1e-4)
    start(tmp_path, engine, "runner", *own)
    resumed = start(tmp_path, engine, "runner", "resume=latest", "trainer.epochs=2", "mesh=batch8")
    assert "images: bytes of 0 to 255, which the model rescales" in resumed.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["eval_loss"] == wanted
    start(tmp_path, engine, "runner.evaluate", "run=latest", "mesh=batch8")
    assert json.loads((tmp_path / "run" / "evaluate.json").read_text())["loss"] == wanted
    # The export compares its answers to the run's, for the same bytes.
    start(tmp_path, engine, "runner.export", "run=latest", f"export.folder={tmp_path / 'export'}")
    start(tmp_path, engine, "runner.verify", *own, "mesh=batch8", "optimizer.learning_rate=0.1", "verify.steps=4")
