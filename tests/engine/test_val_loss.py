"""An evaluation's loss is Keras's `val_loss`, on every mesh: with what layers add, and without class weights."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Float32 means of tens of terms, in another order.
ROUNDING = 2e-6
AXES = [{"batch": 1}, {"batch": 8}, {"batch": 4, "model": 2}]


@pytest.fixture(scope="module", params=["jax", "keras_dtensor"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=AXES, ids=str)
def found(request: pytest.FixtureRequest, engine: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.engine.val_loss_worker", engine, json.dumps(request.param)]
    library = "jax" if engine == "jax" else "tensorflow"
    done = forks.run(command, library=library, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("case", ["penalties", "activity", "added", "mixed", "class_weights"])
def test_an_evaluation_equals_that_of_keras(found: dict[str, Any], case: str) -> None:
    run, keras = found[case]["run"], found[case]["keras"]
    assert run["loss"] == pytest.approx(keras["loss"], rel=ROUNDING)
    assert run["accuracy"] == pytest.approx(keras["accuracy"], rel=ROUNDING)
    adds = case in ("penalties", "activity", "added")
    assert ("task_loss" in run) == adds, "the task's loss alone is a metric where layers add to it"
    if adds:
        assert run["task_loss"] < run["loss"]


def test_a_loss_whose_arrays_are_broadcast_gets_a_warning_and_an_error_with_accumulation(
    found: dict[str, Any],
) -> None:
    (warning,) = found["broadcast 1"]
    assert "depends on other rows of its batch" in warning
    assert "broadcast" in warning
    assert "task.whole_batch=true" in warning
    (error,) = found["broadcast 2"]
    assert error.startswith("error: trainer.accumulate_steps=2: the loss of an example depends on other rows")
    assert found["by_example 1"] == found["by_example 2"] == []
