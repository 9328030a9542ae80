"""What is estimated from shapes is what DTensor's program holds, model by model and layout by layout."""

from __future__ import annotations

import collections
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


def summed(moved: list[dict[str, Any]], variables: list[str]) -> dict[tuple[str, ...], tuple[int, int]]:
    """Returns count and bytes by phase, kind, axis and variable; a layer's name may be lost in the program."""
    sums: dict[tuple[str, ...], tuple[int, int]] = collections.defaultdict(lambda: (0, 0))
    for each in moved:
        key = (each["phase"], each["kind"], each["axis"], each["origin"] if each["origin"] in variables else "")
        sums[key] = (sums[key][0] + each["count"], sums[key][1] + each["bytes"])
    return dict(sums)


@pytest.mark.parametrize("name", NAMES)
def test_every_collective_is_estimated_to_the_byte(found: dict[str, Any], name: str) -> None:
    got = found[name]
    assert got["counted"]
    assert summed(got["estimated"], got["variables"]) == summed(got["counted"], got["variables"])


@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_of_the_programs_products(found: dict[str, Any], name: str) -> None:
    # DTensor multiplies a few numbers besides to find a device's place in the mesh.
    counted, estimated = found[name]["operations"], found[name]["estimated_operations"]
    assert 0 <= counted - estimated < 500
