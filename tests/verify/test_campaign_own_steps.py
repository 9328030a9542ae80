"""Verify passes a sound engine on a custom step, and names what a broken one gets wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
NAMED = {
    "average": "slow/d1/kernel",
    "moment": "net/d1/kernel",
    "shorter": "net/d1/kernel",
    "metric": "loss",
    "key": "net/d1/kernel",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("mutants")
    command = [sys.executable, "-m", "tests.verify.own_step_mutants", str(folder / "o.json")]
    done = forks.run(command, library="jax", cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads((folder / "o.json").read_text()))


def test_a_sound_engine_is_verified(found: dict[str, Any]) -> None:
    assert found["sound"]["verdict"] == "verified"


@pytest.mark.parametrize("mutation", NAMED)
def test_a_broken_engine_is_a_mismatch_that_names_the_variable(found: dict[str, Any], mutation: str) -> None:
    assert found[mutation]["verdict"] == "mismatch"
    assert NAMED[mutation] in found[mutation]["failed"]
