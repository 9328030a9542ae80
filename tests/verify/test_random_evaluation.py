"""A model that draws random numbers in evaluations too: a VAE, or dropout that is always on, is no mismatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly import nightly_except
from tests.verify.test_verify import command, result

pytestmark = pytest.mark.slow

MODULE = """
def dropout(keras, outputs):
    class Always(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="always")
            self.dropout = keras.layers.Dropout(0.5, name="dropout")

        def call(self, x):
            return self.dropout(x, training=True)

    layers = keras.layers
    hidden = [layers.Flatten(), layers.Dense(16, "tanh", name="hidden"), Always()]
    return keras.Sequential([keras.Input((8, 8, 1)), *hidden, layers.Dense(outputs.units, name="head")])


def vae(keras, outputs):
    class Sampling(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="sampling")
            self.encoder = keras.layers.Dense(4, name="encoder")
            self.decoder = keras.layers.Dense(64, name="decoder")
            self.noise = keras.layers.GaussianNoise(1.0, name="noise")

        def call(self, x):
            error = self.decoder(self.noise(self.encoder(x), training=True)) - x
            mean = (keras.ops if hasattr(keras, "ops") else keras.backend).mean
            self.add_loss(mean(error * error))
            return error[:, :1]

    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), Sampling()])


def no_loss(ops, outputs, batch):
    return 0.0 * ops.sum(outputs, axis=-1)
"""
VAE = ["vae", "task=custom", "task._target_=random_models.no_loss"]
CASES = [("jax", ["dropout"]), ("keras_dtensor", ["dropout"]), ("jax", VAE)]
LEFT_OUT = "evaluation: not compared, as its loss has random numbers of the model's own"


@pytest.mark.parametrize(("engine", "model"), nightly_except(CASES[2:], CASES))
def test_random_numbers_in_an_evaluation_are_no_mismatch(tmp_path: Path, engine: str, model: list[str]) -> None:
    (tmp_path / "random_models.py").write_text(MODULE)
    builder, *task = model
    chosen = ["model=custom", f"model._target_=random_models.{builder}", *task, f"engine={engine}", "mesh=batch8"]
    # A batch of the evaluation is padded on the mesh alone: what is drawn there must not depend on it.
    done = command(tmp_path, *chosen, "verify.steps=3", "dataset.batch_size=32", "tracking=none")
    assert "verified: 3 steps" in done.stdout
    compared = any(check["kind"] == "evaluation" for check in result(tmp_path)["checks"])
    assert compared == (engine == "jax"), "keras_dtensor draws others in each call"
    assert (LEFT_OUT in " ".join(done.stdout.split())) != compared
