"""A model that mixes the rows of a batch is evaluated, and exported, in the batches of its run."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.commands import ran
from tests.nightly import nightly_except

pytestmark = pytest.mark.slow

# The Lambda is of plain Python: it serves both Keras's, and neither writes it into a Keras file that can be loaded.
MODELS = """
import gc

def build(keras, outputs):
    engines = [each for each in gc.get_objects() if type(each).__name__ in ("JaxEngine", "DTensorEngine")]
    print(f"builds for {len(engines)} engines")
    layers = keras.layers
    mixed = layers.Lambda(lambda x: x - 0.5 * x[::-1])
    return keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"), mixed, layers.Dense(outputs.units)])
"""
OPTIONS = (
    "dataset=arrays dataset.path=data dataset.holdout=0 model=custom model._target_=models.build task.classes=3"
    " mesh=single"
)
SIZES = (
    "dataset.batch_size=16 dataset.eval_batch_size=16 trainer.epochs=1 tracking=none trainer.checkpoint.folder=kept"
)


ENGINES = [("jax", forks.JAX), ("keras_dtensor", forks.TENSORFLOW)]


@pytest.mark.parametrize(("engine", "library"), nightly_except(ENGINES[:1], ENGINES))
def test_an_evaluation_and_an_export_equal_the_run(tmp_path: Path, engine: str, library: str) -> None:
    draw = np.random.default_rng(0)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "data").mkdir()
    # 18 examples of the test split leave a batch of two, which is not padded.
    for split, size in (("train", 32), ("test", 18)):
        label = draw.integers(0, 3, size).astype("int32")
        np.savez(tmp_path / "data" / f"{split}.npz", x=draw.normal(size=(size, 6)).astype("float32"), label=label)

    def start(module: str, *overrides: str) -> str:
        return ran(tmp_path, module, *overrides, f"hydra.run.dir={module}", library=library).stdout

    start("runner", f"engine={engine}", *OPTIONS.split(), *SIZES.split())
    run = json.loads((tmp_path / "runner" / "summary.json").read_text())
    start("runner.evaluate", "run=latest", "trainer.checkpoint.folder=kept")
    again = json.loads((tmp_path / "runner.evaluate" / "evaluate.json").read_text())
    assert (again["loss"], again["accuracy"]) == (run["eval_loss"], run["eval_accuracy"])
    said = start("runner.export", "run=latest", "trainer.checkpoint.folder=kept", "export.folder=export")
    assert "builds for 1 engines" in said
    assert "builds for 2 engines" not in said, "the run's engine is freed before the plain model is built"
    assert "left out model.keras" in said
    assert "lambda" in said
