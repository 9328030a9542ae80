"""What a short run costs before and after training, held by counts instead of times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.config.schema import DatasetConfig
from runner.data import loading
from tests import forks

pytestmark = pytest.mark.slow

# Plain Keras, on JAX as the run was, without the runner. TensorFlow is hidden, as its import takes most of the time.
LOADED = """
import json, sys
sys.modules["tensorflow"] = None
import numpy as np
import keras

model = keras.saving.load_model(sys.argv[1])
images = np.load(sys.argv[2])
print(json.dumps(model.predict(images, verbose=0).argmax(-1).tolist()))
"""


def started(folder: Path, arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(forks.ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.nightly
def test_a_tracked_run_on_jax_imports_no_tensorflow_and_its_model_loads_in_plain_keras(tmp_path: Path) -> None:
    run = ["engine=jax", "mesh=single", "dataset=digits", "trainer.epochs=3", "trainer.progress=none"]
    done = started(tmp_path, ["-m", "tests.run.start_worker", *run])
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["imported"] == ["jax", "keras", "matplotlib", "mlflow"]
    assert counts["composed"] == 1
    assert counts["listed"] == 0
    assert "is not logged" not in done.stderr

    (file,) = tmp_path.glob("outputs/mlartifacts/models/*/artifacts/artifacts/model.keras")
    test = loading.load(DatasetConfig(name="digits")).test.arrays
    np.save(tmp_path / "images.npy", test["image"].astype(np.float32) / 255)
    labels = test["label"].tolist()
    loaded = started(tmp_path, ["-c", LOADED, str(file), "images.npy"], KERAS_BACKEND="jax")
    answers = json.loads(loaded.stdout.splitlines()[-1])
    share = sum(answer == label for answer, label in zip(answers, labels, strict=True)) / len(labels)
    (summary,) = tmp_path.glob("outputs/runs/*/summary.json")
    assert share == pytest.approx(json.loads(summary.read_text())["eval_accuracy"], abs=1 / len(labels))
