"""Keras scripts that are verified as they are: right ones, wrong ones, and what can't be taken."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.nightly import nightly_except
from tests.verify.test_verify import ROOT

pytestmark = pytest.mark.slow

# The middle names the parts that a case changes.
SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import keras, numpy as np
keras.utils.set_random_seed(0)
distribution = keras.distribution
{distribution}
class Scaled(keras.layers.Layer):
    def call(self, x):
        return x * ({factor} if distribution.distribution() is not None else 1.0)
layers = [keras.layers.Input((12,)), keras.layers.Dense(16, "relu", name="up"), Scaled(), keras.layers.Dropout(0.2)]
model = keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(4, name="down")])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"], {compiled})
rng = np.random.default_rng(0)
x, y, weight = rng.normal(size=(24, 12)).astype("f"), rng.integers(0, 4, 24), rng.uniform(size=24).astype("f")
{fit}
raise RuntimeError("a script may end as it likes")
"""
DATA = """
mesh = distribution.DeviceMesh((4,), ("batch",), distribution.list_devices("cpu"))
distribution.set_distribution(distribution.DataParallel(device_mesh=mesh))
"""
MODEL = """
mesh = distribution.DeviceMesh((2, 2), ("batch", "model"), distribution.list_devices("cpu"))
layout = distribution.LayoutMap(mesh)
layout["up/kernel"], layout["down/kernel"] = (None, "model"), ("model", None)
distribution.set_distribution(distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))
"""
FIT = "model.fit(x, y, batch_size=16, epochs=2, verbose=0, sample_weight=weight)"
EVALUATE = f"{FIT}\nmodel.evaluate(x, y, batch_size=16, verbose=0)"


def script(distribution: str = DATA, factor: str = "1.0", compiled: str = "", fit: str = FIT) -> str:
    return SCRIPT.format(distribution=distribution, factor=factor, compiled=compiled, fit=fit)


def verify(folder: Path, text: str) -> str:
    """Returns what the command prints for a script, in one line, with its exit code first."""
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "runner.verify", "script=train.py", "verify.steps=4", "hydra.run.dir=run"]
    held = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "150", "XLA_FLAGS": ""}
    done = forks.run(command, cwd=folder, env=held)
    return f"{done.returncode} {' '.join((done.stdout + done.stderr).split())}"


@pytest.mark.nightly
@pytest.mark.parametrize("distribution", [DATA, MODEL])
def test_a_right_script_is_verified_and_so_is_its_evaluation(tmp_path: Path, distribution: str) -> None:
    said = verify(tmp_path, script(distribution, fit=EVALUATE))
    assert said.startswith("0 ")
    assert "verified: 4 steps on batch=" in said
    assert "verified: an evaluation on batch=" in said
    content = json.loads((tmp_path / "run/verify.json").read_text())
    assert {"sequential/up/kernel", "sequential/down/bias"} <= {each["variable"] for each in content["variables"]}
    assert json.loads((tmp_path / "run/verify_evaluate.json").read_text())["verdict"] == "verified"


@pytest.mark.nightly
def test_a_layer_that_computes_something_else_on_a_mesh_is_a_mismatch(tmp_path: Path) -> None:
    said = verify(tmp_path, script(MODEL, factor="1.01"))
    assert said.startswith("1 ")
    assert (
        "error: mismatch: the mesh batch=2 model=2 differs from one device, first in gradient/sequential/up/" in said
    )


PROBLEMS = [
    (script(""), "sets no distribution before it calls fit; call keras.distribution.set_distribution(...)"),
    (script(compiled="steps_per_execution=2"), "compiles with steps_per_execution=2; leave it out for the proof"),
    ("boom()", "raised NameError: name 'boom' is not defined (train.py:"),
    ("raise SystemExit", "calls no model.fit of Keras on JAX; set KERAS_BACKEND=jax"),
]


# The second comes about as the first, and each of the two imports Keras.
@pytest.mark.parametrize(("text", "problem"), nightly_except([PROBLEMS[0], *PROBLEMS[2:]], PROBLEMS))
def test_what_a_script_does_that_cannot_be_taken_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    said = verify(tmp_path, text)
    assert said.startswith("2 ")
    assert f"error: script=train.py: {problem}" in said
    assert "Traceback" not in said


def test_a_missing_script_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = forks.python("-m", "runner.verify", "script=other.py", folder=tmp_path, code=2)
    assert done.stderr == "error: script=other.py: no such file; name the Python file that calls model.fit\n"
