"""What is estimated from shapes is what DTensor's program holds, model by model and layout by layout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.plan import cases

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
NAMES = ["-".join(case) for case in cases.EXACT]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.plan.exact_worker"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="tensorflow", env=environment, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


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
