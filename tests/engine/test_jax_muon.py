"""Muon on a mesh gives what Keras's class gives, and each device does a part of the work."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from tests import forks
from tests.engine.jax_runs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def results() -> Any:
    command = [sys.executable, "-m", "tests.engine.muon_worker"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    done = forks.run(command, library="jax", cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("mesh", ["one", "batch8", "batch4_model2"])
def test_matrices_of_any_shape_are_those_of_keras(results: Any, mesh: str) -> None:
    # Entries are about 1, and float32 rounds them at 1e-7.
    assert results[mesh]["difference"] < 1e-5


@pytest.mark.parametrize("mesh", ["batch8", "batch4_model2"])
def test_eight_devices_divide_the_products(results: Any, mesh: str) -> None:
    assert results[mesh]["flops"] < results["one"]["flops"] / 6
