"""Distillation with a preset of KerasHub: compared with Keras's `Distiller`, and with a teacher that moves."""

from __future__ import annotations

import importlib.util
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
    # An import would keep every later test of the session from being forked, see `tests.forks`.
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("needs the extra hub")
    folder = tmp_path_factory.mktemp("distillation")
    command = [sys.executable, "-m", "tests.verify.distillation_worker", str(folder / "o.json"), str(folder)]
    done = forks.run(command, library="jax", cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads((folder / "o.json").read_text()))


def test_a_mesh_distills_as_keras_does(found: dict[str, Any]) -> None:
    # Float32 sums in another order, over 6 steps. Keras's divergence clips probabilities at 1e-7.
    assert found["losses"] == pytest.approx(found["stock losses"], rel=1e-5)
    assert len(found["differences"]) == 3
    assert max(found["differences"].values()) < 1e-5


def test_an_evaluation_logs_both_parts_of_the_loss(found: dict[str, Any]) -> None:
    assert found["metrics"] == ["accuracy", "distillation_loss", "loss"]


def test_the_teacher_is_the_model_that_keras_hub_loads(found: dict[str, Any]) -> None:
    assert found["difference of the teacher"] < 1e-6


def test_the_teacher_stays_bitwise_identical_in_a_run_and_after_a_resume(found: dict[str, Any]) -> None:
    assert len(found["specs"]) > 30
    assert found["moved"] == []
    assert found["moved after a resume"] == []
    assert found["resumed otherwise"] == []


def test_the_layout_shards_the_teacher(found: dict[str, Any]) -> None:
    sharded = [path for path, spec in found["specs"].items() if spec == "('batch', 'model', None)"]
    assert len(sharded) == 6
    assert all(path.startswith("big/") for path in sharded)


def test_a_sound_engine_is_verified(found: dict[str, Any]) -> None:
    assert found["sound"] == {"verdict": "verified", "failed": []}


def test_a_teacher_that_moves_is_a_mismatch_that_names_it(found: dict[str, Any]) -> None:
    assert found["moves"]["verdict"] == "mismatch"
    assert any(path.startswith("big/") for path in found["moves"]["failed"])
