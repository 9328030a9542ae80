"""A loss or a metric that reads other rows of its batch is evaluated on examples alone, however the mesh pads them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.engine.rows_worker import SIZE
from tests.nightly import nightly_except

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Float32 sums of some ten terms, in another order. One row of padding among the 12 moves both by a percent and more.
ROUNDING = 1e-6
MESHES = [{"batch": 8}, {"batch": 5}, {"batch": 2, "model": 2}]


def work(engine: str, axes: dict[str, int]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.engine.rows_worker", engine, json.dumps(axes)]
    library = "jax" if engine == "jax" else "tensorflow"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("axes", nightly_except(MESHES[:1], MESHES), ids=str)
@pytest.mark.parametrize("engine", nightly_except(["jax"], ["jax", "keras_dtensor"]))
def test_an_evaluation_gives_what_its_examples_give_without_padding(engine: str, axes: dict[str, int]) -> None:
    found = work(engine, axes)
    for model in ("one", "two"):
        assert found[model]["metrics"] == pytest.approx(found[model]["expected"], rel=ROUNDING)
        assert found[model]["examples"] == SIZE
    assert found["two"]["outputs"] == {"output_0": [SIZE, 4], "output_1": [SIZE, 3]}, "all of a tuple, by name"
    assert "the loss of an example depends on other rows of its batch" in found["contrast"]
    assert found["alone"] == found["masked"] == "passes", "padding counts in none of these"
    if engine == "jax":
        evaluated, plain = found["table"]
        assert evaluated == pytest.approx(plain, rel=ROUNDING), "what has no row per example is left whole"
