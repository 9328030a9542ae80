"""Verify knows any task and any number of inputs, and sees a loss or an input that is wrong on the mesh alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.nightly import nightly_except
from tests.verify.test_verify import broken, command, failures, result

pytestmark = pytest.mark.slow

MODULE = """
def two(keras, inputs, outputs, width=16):
    given = {name: keras.Input(spec.shape, name=name) for name, spec in inputs.items()}
    first, second = given.values()
    x = keras.layers.Dense(width, activation="tanh", name="first")(first)
    y = keras.layers.Dense(width, activation="tanh", name="second")(second)
    z = keras.layers.Concatenate(name="both")([x, y])
    return keras.Model(given, keras.layers.Dense(outputs.units, name="head")(z))
"""
TWO = ["dataset=arrays", "dataset.path=pairs.npz", "model=custom", "model._target_=two_inputs.two"]
SHORT = ["verify.steps=4", "dataset.batch_size=32", "tracking=none"]

# One output is near those of its own label, and far from those of others: each row's loss is of all rows.
CONTRAST = """
def loss(ops, outputs, batch):
    unit = outputs / ops.sqrt(ops.sum(ops.square(outputs), axis=-1, keepdims=True) + 1e-6)
    near = 2.0 * ops.matmul(unit, ops.transpose(unit))
    label = ops.one_hot(batch["label"], 10)
    same = ops.matmul(label, ops.transpose(label))
    log = near - ops.expand_dims(ops.logsumexp(near), -1)
    return -ops.sum(same * log, axis=-1) / ops.sum(same, axis=-1)


def alike(ops, outputs, batch):
    square = ops.sum(ops.square(outputs), axis=-1, keepdims=True)
    return ops.mean(square + ops.transpose(square) - 2.0 * ops.matmul(outputs, ops.transpose(outputs)), axis=-1)
"""
CONTRASTIVE = ["task=custom", "task._target_=contrast.loss", "task.minimize=[alike]", "task.units=6", "mesh=batch8"]


def written(folder: Path) -> None:
    """Writes a table, two arrays with a target, and a builder of two inputs."""
    rng = np.random.default_rng(0)
    area, age = rng.uniform(30, 200, 200), rng.uniform(0, 80, 200)
    lines = [f"{a:.1f},{b:.1f},{2 * a - 0.8 * b:.2f}" for a, b in zip(area, age, strict=True)]
    (folder / "houses.csv").write_text("\n".join(["area,age,price", *lines]) + "\n")
    left, right = rng.normal(size=(2, 200, 6)).astype(np.float32)
    np.savez(folder / "pairs.npz", left=left, right=right, y=(left - right).sum(1).astype(np.float32))
    (folder / "two_inputs.py").write_text(MODULE)


@pytest.mark.parametrize("engine", nightly_except(["jax"], ["keras_dtensor", "jax"]))
@pytest.mark.parametrize("mesh", nightly_except(["batch4_model2"], ["batch8", "batch4_model2"]))
def test_a_regression_from_a_table_equals_one_device(tmp_path: Path, engine: str, mesh: str) -> None:
    written(tmp_path)
    table = ["dataset=arrays", "dataset.path=houses.csv", "task=regression", "task.target=price"]
    layout = ["layout=megatron"] if "model" in mesh else []
    done = command(tmp_path, *table, f"engine={engine}", f"mesh={mesh}", *layout, *SHORT)
    assert "verified: 4 steps" in done.stdout
    assert max(float(check["ratio"]) for check in result(tmp_path)["checks"]) < 0.5, "far from the tolerances"


@pytest.mark.nightly
def test_inputs_that_are_swapped_on_the_mesh_are_seen(tmp_path: Path) -> None:
    written(tmp_path)
    done = broken(tmp_path, "swapped_inputs", *TWO, "task=regression", "engine=jax", *SHORT)
    assert "first in the loss of step 1" in done.stderr
    assert min(failures(tmp_path)[f"gradient/{layer}/kernel"] for layer in ("first", "second")) > 1000


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "more"), [("keras_dtensor", []), ("jax", []), ("jax", ["trainer.accumulate_steps=2"])]
)
def test_a_loss_that_reads_other_rows_equals_one_device(tmp_path: Path, engine: str, more: list[str]) -> None:
    (tmp_path / "contrast.py").write_text(CONTRAST)
    done = command(tmp_path, *CONTRASTIVE, f"engine={engine}", *SHORT, *more)
    assert "verified: 4 steps" in done.stdout
    checks = {check["name"]: check for check in result(tmp_path)["checks"] if check["kind"] == "evaluation"}
    assert set(checks) == {f"point{point}/evaluated/{name}" for point in (0, 1) for name in ("loss", "alike")}
    assert max(float(check["ratio"]) for check in checks.values()) < 0.5, "far from the tolerances"


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras_dtensor", "jax"])
def test_padding_that_a_loss_reads_in_an_evaluation_is_seen(tmp_path: Path, engine: str) -> None:
    (tmp_path / "contrast.py").write_text(CONTRAST)
    broken(tmp_path, "padding_in_an_evaluation", *CONTRASTIVE, f"engine={engine}", *SHORT)
    assert "/evaluated/" in result(tmp_path)["first"]
    found = failures(tmp_path)
    assert set(found) == {f"point{point}/evaluated/{name}" for point in (0, 1) for name in ("loss", "alike")}
    assert min(found.values()) > 100


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["keras_dtensor", "jax"])
def test_padding_of_a_training_that_a_loss_reads_is_rejected(tmp_path: Path, engine: str) -> None:
    (tmp_path / "contrast.py").write_text(CONTRAST)
    done = command(tmp_path, *CONTRASTIVE, f"engine={engine}", *SHORT, "dataset.remainder=pad", code=2)
    assert "dataset.remainder=pad: the loss of an example depends on other rows" in done.stderr
