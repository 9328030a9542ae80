"""Verify passes a sound engine on a loss that reads a teacher, and names a teacher that moves."""

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


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("teachers")
    command = [sys.executable, "-m", "tests.verify.teacher_mutants", str(folder / "o.json"), str(folder / "t.keras")]
    done = forks.run(command, library="jax", cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads((folder / "o.json").read_text()))


def test_a_sound_engine_is_verified(found: dict[str, Any]) -> None:
    assert found["sound"] == {"verdict": "verified", "failed": []}


def test_a_teacher_that_moves_is_a_mismatch_that_names_it(found: dict[str, Any]) -> None:
    assert found["moves"]["verdict"] == "mismatch"
    assert "big/wide/kernel" in found["moves"]["failed"]


def test_other_answers_of_a_teacher_are_a_mismatch(found: dict[str, Any]) -> None:
    assert found["answers"]["verdict"] == "mismatch"
    assert {"d1/kernel", "loss"} <= set(found["answers"]["failed"])


def test_a_student_trains_on_a_mesh_as_keras_trains_it_on_the_answers(found: dict[str, Any]) -> None:
    # Float32 sums in another order, over 6 steps; a teacher in training mode is off by 1e-1.
    assert found["losses"] == pytest.approx(found["stock losses"], rel=1e-5)


def test_teachers_are_sharded_by_the_rules_and_no_part_of_the_state(found: dict[str, Any]) -> None:
    assert found["specs"]["big/wide/kernel"] == "('batch', 'model')"
    assert not any(path.startswith("big/") for path in found["placements"])
