"""Every optimizer of Keras, 50 steps on two meshes: equal to stock Keras, planned to the byte, resumed bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.optim.keras_runs import ELEMENTWISE, MESHES, RUNS, named, work
from tests.optim.test_keras_classes import off

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

STEPS = 50


@pytest.fixture(scope="module", params=list(MESHES))
def trained(request: pytest.FixtureRequest) -> Any:
    """All runs on a mesh, in one process that has the library."""
    return work(request.param, RUNS, STEPS)


@pytest.mark.parametrize("name", [named(run) for run in RUNS])
def test_parameters_and_state_equal_those_of_stock_keras_on_one_device(trained: Any, name: str) -> None:
    assert off({name: trained[name]}) == {}


@pytest.mark.parametrize("name", [named(run) for run in RUNS])
def test_a_resumed_run_is_bitwise_identical(trained: Any, name: str) -> None:
    assert trained[name]["resumed"] == []


@pytest.mark.parametrize("name", [named(run) for run in RUNS])
def test_the_plan_has_the_bytes_that_a_device_holds(trained: Any, name: str) -> None:
    sizes = trained[name]["bytes"]
    assert any(path.startswith("optimizer/") for path in sizes)
    assert {path: found for path, found in sizes.items() if len(set(found)) > 1} == {}


@pytest.fixture(scope="module", params=list(MESHES))
def trained_on_dtensor(request: pytest.FixtureRequest) -> Any:
    """The runs with a rule of ours."""
    return work(request.param, [run for run in RUNS if named(run) in ELEMENTWISE], STEPS, engine="keras_dtensor")


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_our_rules_on_dtensor_equal_stock_keras_and_resume_exactly(trained_on_dtensor: Any, name: str) -> None:
    assert off({name: trained_on_dtensor[name]}) == {}
    assert trained_on_dtensor[name]["resumed"] == []
    sizes = trained_on_dtensor[name]["bytes"]
    assert {path: found for path, found in sizes.items() if len(set(found)) > 1} == {}
