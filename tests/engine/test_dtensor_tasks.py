"""keras_dtensor trains any inputs and tasks on a mesh as plain tf_keras does on one device."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.engine.dtensor_tasks_worker import NAMES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Float32 sums of the same terms in another order, over 12 steps; padding that counted would be off by a seventh.
RELATIVE, ABSOLUTE = 1e-5, 1e-6
MESHES: dict[str, dict[str, Any]] = {
    "batch8": {"axes": {"batch": 8}, "layout": "replicated", "inputs": {}},
    "batch4_model2": {"axes": {"batch": 4, "model": 2}, "layout": "megatron", "inputs": {}},
    "images by rows, words by place": {
        "axes": {"batch": 2, "space": 2},
        "layout": "replicated",
        "inputs": {"picture": ["batch", "space", None, None], "words": ["batch", "space"]},
    },
}


def work(out: Path, request: dict[str, Any]) -> dict[str, np.ndarray]:
    command = [sys.executable, "-m", "tests.engine.dtensor_tasks_worker", str(out), json.dumps(request)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="tensorflow", cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return work(tmp_path_factory.mktemp("tasks") / "stock.npz", {"axes": None, "layout": "replicated", "inputs": {}})


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", list(MESHES))
def test_inputs_and_tasks_of_any_kind_train_on_a_mesh_as_tf_keras_does(
    one_device: dict[str, np.ndarray], tmp_path: Path, mesh: str
) -> None:
    got = work(tmp_path / "mesh.npz", MESHES[mesh])
    assert set(got) == set(one_device)
    for name in NAMES:
        assert {f"{name}:{key}" for key in ("loss", "outputs", "eval", "d1/kernel", "gradient/d2/bias")} <= set(got)
    for key, value in one_device.items():
        np.testing.assert_allclose(got[key], value, rtol=RELATIVE, atol=ABSOLUTE, err_msg=key)
