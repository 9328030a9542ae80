"""Verify passes a sound engine on a custom step, and names what a broken one gets wrong."""

from typing import Any

import pytest

from tests import forks

pytestmark = pytest.mark.nightly

NAMED = {
    "average": "slow/d1/kernel",
    "moment": "net/d1/kernel",
    "shorter": "net/d1/kernel",
    "metric": "loss",
    "key": "net/d1/kernel",
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return dict(forks.answer("-m", "tests.verify.own_step_mutants", library="jax", timeout=900))


def test_a_sound_engine_is_verified(found: dict[str, Any]) -> None:
    assert found["sound"]["verdict"] == "verified"


@pytest.mark.parametrize("mutation", NAMED)
def test_a_broken_engine_is_a_mismatch_that_names_the_variable(found: dict[str, Any], mutation: str) -> None:
    assert found[mutation]["verdict"] == "mismatch"
    assert NAMED[mutation] in found[mutation]["failed"]
