"""What a short run costs before and after training, held by counts instead of times."""

import json
from pathlib import Path

import numpy as np
import pytest

from runner.config.schema import DatasetConfig
from runner.data import loading
from tests import forks

pytestmark = pytest.mark.slow

# A run that counts how often the config was composed and all installed packages were listed, and what it imports.
COUNTED = """
import json, sys
import importlib_metadata
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from runner.__main__ import main

counts = {}

def count(owner, name):
    sound = getattr(owner, name)
    counts[name] = 0

    def call(*given, **named):
        counts[name] += 1
        return sound(*given, **named)

    setattr(owner, name, call)

count(ConfigLoaderImpl, "load_configuration")
count(importlib_metadata, "packages_distributions")
try:
    main()
finally:
    heavy = {"jax", "keras", "matplotlib", "mlflow", "sklearn", "tensorflow", "tf_keras"}
    print(json.dumps(counts | {"imported": sorted(heavy & set(sys.modules))}))
"""
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


@pytest.mark.nightly
def test_a_tracked_run_on_jax_imports_no_tensorflow_and_its_model_loads_in_plain_keras(tmp_path: Path) -> None:
    run = ["engine=jax", "mesh=single", "dataset=digits", "trainer.epochs=3", "trainer.progress=none"]
    done = forks.python("-c", COUNTED, *run, folder=tmp_path)
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["imported"] == ["jax", "keras", "matplotlib", "mlflow"]
    assert counts["load_configuration"] == 1
    assert counts["packages_distributions"] == 0
    assert "is not logged" not in done.stderr

    (file,) = tmp_path.glob("outputs/mlartifacts/models/*/artifacts/artifacts/model.keras")
    test = loading.load(DatasetConfig(name="digits")).test.arrays
    np.save(tmp_path / "images.npy", test["image"].astype(np.float32) / 255)
    labels = test["label"].tolist()
    loaded = forks.python("-c", LOADED, str(file), "images.npy", folder=tmp_path, KERAS_BACKEND="jax")
    answers = json.loads(loaded.stdout.splitlines()[-1])
    share = sum(answer == label for answer, label in zip(answers, labels, strict=True)) / len(labels)
    (summary,) = tmp_path.glob("outputs/runs/*/summary.json")
    assert share == pytest.approx(json.loads(summary.read_text())["eval_accuracy"], abs=1 / len(labels))
