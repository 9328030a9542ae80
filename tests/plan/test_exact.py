"""What is estimated from shapes is what DTensor's program holds, model by model and layout by layout."""

from typing import Any

import pytest

from tests import forks
from tests.plan import cases

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

NAMES = ["-".join(case) for case in cases.EXACT]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return dict(forks.answer("-m", "tests.plan.exact_worker", library="tensorflow"))


@pytest.mark.parametrize("name", NAMES)
def test_every_collective_is_estimated_to_the_byte(found: dict[str, Any], name: str) -> None:
    got = found[name]
    assert got["counted"]
    assert got["estimated"] == got["counted"]


@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_of_the_programs_products(found: dict[str, Any], name: str) -> None:
    # DTensor multiplies a few numbers besides to find a device's place in the mesh.
    counted, estimated = found[name]["operations"], found[name]["estimated_operations"]
    assert 0 <= counted - estimated < 500
