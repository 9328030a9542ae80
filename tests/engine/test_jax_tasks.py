"""Several inputs, numbers, several labels an example: the engine `jax` computes what Keras 3's training does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.engine.tasks_worker import BATCH, NAMES, PADDED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MESHES = [
    ({"batch": 1}, "replicated"),
    ({"batch": 8}, "replicated"),
    ({"batch": 4, "model": 2}, "megatron"),
    ({"batch": 4, "model": 2}, "rows"),
]
# Float32 sums of the same terms in another order; a term left out, or padding counted, is off by 1e-3 and more.
RELATIVE, ABSOLUTE = 1e-5, 1e-6


def work(out: Path, engine: str, axes: dict[str, int], layout: str) -> dict[str, np.ndarray]:
    command = [sys.executable, "-m", "tests.engine.tasks_worker", str(out), engine, json.dumps(axes), layout]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="jax", cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return work(tmp_path_factory.mktemp("plain") / "plain.npz", "plain", {"batch": 1}, "replicated")


@pytest.mark.nightly
@pytest.mark.parametrize(("axes", "layout"), MESHES)
def test_every_task_trains_on_a_mesh_as_keras_does_on_one_device(
    tmp_path: Path, keras: dict[str, np.ndarray], axes: dict[str, int], layout: str
) -> None:
    got = work(tmp_path / "got.npz", "jax", axes, layout)
    different = []
    for key, expected in keras.items():
        error = np.abs(got[key].reshape(expected.shape) - expected)
        if not np.all(error <= np.maximum(ABSOLUTE, RELATIVE * np.abs(expected))):
            different.append(f"{key}: {error.max():.1e}")
    assert different == []
    for name in NAMES:
        assert f"{name}:gradient/d1/kernel" in keras
        assert got[f"{name}:examples"] == BATCH - PADDED
