"""Functions of every library are those of NumPy. That losses are Keras's own is in `tests/parity`."""

import os
from pathlib import Path

import numpy as np
import pytest

from runner import arrays
from runner.data.base import WEIGHT, ArraySpec
from runner.task.registry import make_task
from tests import forks
from tests.task import cases
from tests.task.functions import CALLS

# Sums of float32, of up to 13 examples, in another order and form: a few units in the last place of the largest term.
CLOSE = {"rtol": 3e-6, "atol": 3e-6}


@pytest.mark.nightly
@pytest.mark.parametrize("module", ["tensorflow", "jax.numpy"])
def test_every_function_is_that_of_numpy(tmp_path: Path, module: str) -> None:
    out = tmp_path / "found.npz"
    variables = {"KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    forks.python("-m", "tests.task.worker", module, str(out), library=module.partition(".")[0], **variables)
    ops = arrays.of(np)
    with np.load(out) as found:
        for name, call in CALLS.items():
            wanted = np.asarray(call(ops))
            assert found[name].dtype == wanted.dtype or name == "shape", name
            np.testing.assert_allclose(found[name], wanted, **CLOSE, err_msg=name)


@pytest.mark.parametrize("loss", ["mean_squared_error", "mean_absolute_error", "huber"])
def test_a_loss_of_probabilities_is_that_of_the_softmax_of_logits(loss: str) -> None:
    ops = arrays.of(np)
    rng = np.random.default_rng(1)
    specs = {"x": ArraySpec((2,), "float32"), "label": ArraySpec((), "int32", (), tuple("abcde"))}
    batch = {"label": rng.integers(0, 5, 13).astype(np.int32), WEIGHT: np.ones(13, np.float32)}
    logits = rng.normal(scale=3.0, size=(13, 5)).astype(np.float32)
    task = make_task(cases.config("classification", loss=loss), specs)
    of_chances = make_task(cases.config("classification", loss=loss, from_logits=False), specs)
    wanted = of_chances.loss(ops, ops.softmax(logits), batch)
    np.testing.assert_allclose(task.loss(ops, logits, batch), wanted, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("loss", ["mean_squared_error", "huber"])
def test_ignored_positions_are_no_part_of_a_loss(loss: str) -> None:
    ops = arrays.of(np)
    specs = {"x": ArraySpec((2,), "float32"), "y": ArraySpec((4,), "int32")}
    task = make_task(cases.config("positions", loss=loss, classes=3, ignore_index=9), specs)
    rng = np.random.default_rng(0)
    label = np.array([[0, 1, 9, 2], [9, 9, 1, 0]], np.int32)
    batch = {"x": np.zeros((2, 2), np.float32), "y": label, WEIGHT: np.ones(2, np.float32)}
    logits = rng.normal(size=(2, 4, 3)).astype(np.float32)
    changed = np.where((label == 9)[..., None], 5.0 * rng.normal(size=logits.shape), logits).astype(np.float32)
    sums = task.loss(ops, logits, batch)
    np.testing.assert_allclose(sums, task.loss(ops, changed, batch), rtol=1e-6)
    short = make_task(cases.config("positions", loss=loss, classes=3), {**specs, "y": ArraySpec((2,), "int32")})
    second = {"x": batch["x"][1:], "y": label[1:, 2:], WEIGHT: batch[WEIGHT][1:]}
    np.testing.assert_allclose(sums[1:], short.loss(ops, logits[1:, 2:], second), rtol=1e-6)


def test_every_function_of_the_namespace_is_called() -> None:
    called = {name.split()[0] for name in CALLS}
    assert called == set(arrays.FIELDS) - {"keras_name", "head_losses"} | {"shape"}


def test_a_namespace_of_another_library_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown array module os; known modules: numpy, tensorflow, jax"):
        arrays.of(os)
