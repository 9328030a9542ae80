"""Models as users of tf_keras have them train on a DTensor mesh as stock tf_keras trains them on one device."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.engine.dtensor_models_names import NAMES, NOT_TAKEN

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Float32 sums of the same terms in another order, through a dozen layers and three steps of Adam.
RELATIVE, ABSOLUTE = 2e-4, 2e-5
MESHES: dict[str, dict[str, int]] = {"batch8": {"batch": 8}, "batch4_model2": {"batch": 4, "model": 2}}
CASES = [*((name, "batch4_model2") for name in NAMES), ("own_layers", "batch8")]


def work(out: Path, axes: dict[str, int] | None, names: list[str]) -> dict[str, np.ndarray]:
    request = json.dumps({"names": names, "axes": axes})
    command = [sys.executable, "-m", "tests.engine.dtensor_models_worker", str(out), request]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="tensorflow", cwd=ROOT, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return work(tmp_path_factory.mktemp("models") / "stock.npz", None, list(NAMES))


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_a_model_of_stock_layers_trains_on_a_mesh_as_on_one_device(
    one_device: dict[str, Any], tmp_path: Path, name: str, mesh: str
) -> None:
    got = work(tmp_path / "mesh.npz", MESHES[mesh], [name])
    wanted = {key: value for key, value in one_device.items() if key.startswith(f"{name}:")}
    assert f"{name}:error" not in wanted, wanted[f"{name}:error"]
    assert f"{name}:error" not in got, got[f"{name}:error"]
    assert set(got) == set(wanted)
    for key, value in wanted.items():
        np.testing.assert_allclose(got[key], value, rtol=RELATIVE, atol=ABSOLUTE, err_msg=key)


def test_a_layer_that_dtensor_has_no_rule_for_is_rejected_in_a_line(tmp_path: Path) -> None:
    got = work(tmp_path / "mesh.npz", MESHES["batch8"], list(NOT_TAKEN))
    for name, layer in NOT_TAKEN.items():
        said = str(got[f"{name}:error"])
        assert said.startswith("ConfigError: engine.name=keras_dtensor: DTensor can't compute layer "), said
        assert layer in said
        assert said.endswith("; set engine=jax")
