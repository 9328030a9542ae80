"""The engine `jax` draws a model's values by shards: the very ones that a build of stock Keras has, on every mesh."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from tests import forks
from tests.engine.jax_runs import ROOT

pytestmark = pytest.mark.slow

MODELS = ("drawn", "assigned", "regularized", "wants", "given", "constant", "numpy_drawn")


@pytest.fixture(scope="module")
def found() -> Any:
    command = [sys.executable, "-m", "tests.engine.first_values"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    done = forks.run(command, library="jax", cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.nightly
@pytest.mark.parametrize(("model", "devices"), [("drawn", 1), ("given", 1), *((model, 8) for model in MODELS)])
def test_values_are_those_of_a_whole_build_to_the_last_bit(found: Any, model: str, devices: int) -> None:
    other, astray, _ = found[f"{model} {devices}"]
    assert other == []
    assert astray == []


@pytest.mark.parametrize("model", MODELS)
def test_the_model_holds_no_value_beside_the_state(found: Any, model: str) -> None:
    assert found[f"{model} 8"][2] == []


def test_a_model_with_a_computed_constant_is_built_without_drawing_whole_variables(found: Any) -> None:
    assert found["drawn whole"] == 0


def test_a_regularizer_s_factor_is_a_value_that_a_later_program_can_use(found: Any) -> None:
    assert found["penalty"] == 2.0


def test_a_value_that_lies_elsewhere_is_read_a_device_s_part_at_a_time(found: Any) -> None:
    whole = 16 * (1 << 15)
    assert (found["largest given 1"], found["largest given 8"]) == (whole, whole // 8)
