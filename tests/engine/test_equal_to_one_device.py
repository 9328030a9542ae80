"""The engine on a mesh computes what plain tf_keras computes on one device, for every optimizer and model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.engine import cases

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Float32 sums of the same terms in another order stay within these over 50 steps; a stale moment is off by 1e-3 and
# more.
RELATIVE, ABSOLUTE = 1e-5, 1e-6

# Smooth: at a ReLU's kink the last bit of a sum decides whether a whole column of gradients counts.
_MLP = {"hidden": [128], "activation": "tanh"}
MODELS = {
    "sequential": ("runner.model.mlp.sequential", _MLP),
    "functional": ("runner.model.mlp.functional", _MLP),
    "subclassed": ("runner.model.mlp.subclassed", _MLP),
    "explicit": ("runner.model.mlp.explicit", _MLP),
    "own_builder": ("own_models.regularized", {"width": 24}),
}
OWN_MODULE = '''
def regularized(keras, input_shape, num_classes, width: int = 8):
    """Two branches, added; L2 on one kernel; layers without names."""
    inputs = keras.Input(input_shape)
    x = keras.layers.Flatten()(inputs)
    left = keras.layers.Dense(width, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))(x)
    right = keras.layers.Dense(width, activation="sigmoid")(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(keras.layers.Add()([left, right])))
'''


def runs() -> list[dict[str, Any]]:
    """Every optimizer on the sequential MLP, every model under Adam."""
    base = {"optimizer": "adam", "target": MODELS["sequential"][0], "options": _MLP}
    listed = [base | {"name": name, "optimizer": name} for name in cases.OPTIMIZERS]
    listed += [base | {"name": name, "target": t, "options": o} for name, (t, o) in MODELS.items()]
    return listed


def work(
    folder: Path, axes: dict[str, int] | None, chosen: list[dict[str, Any]], combine: bool = True
) -> dict[str, np.ndarray]:
    """Runs the worker and returns its arrays."""
    (folder / "own_models.py").write_text(OWN_MODULE)
    out = folder / f"{'-'.join(f'{k}{v}' for k, v in (axes or {'plain': 1}).items())}.npz"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    command = [
        sys.executable,
        "-m",
        "tests.engine.worker",
        str(out),
        json.dumps({"axes": axes, "runs": chosen, "combine": combine}),
    ]
    done = forks.run(command, library="tensorflow", cwd=folder, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def one_device(folder: Path) -> dict[str, np.ndarray]:
    return work(folder, None, runs())


def differences(expected: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> list[str]:
    """Returns what differs beyond the tolerance among the arrays of `got`; initial weights must be equal."""
    found = []
    for key, value in got.items():
        exact = ":initial/" in key or ":eval/confusion" in key
        if key not in expected:  # optimizer slots, which plain tf_keras names otherwise
            continue
        allowed = 0.0 if exact else np.maximum(ABSOLUTE, RELATIVE * np.abs(expected[key]))
        if not np.all(np.abs(value - expected[key]) <= allowed):
            found.append(f"{key}: {np.abs(value - expected[key]).max():.1e}")
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("size", [8])
def test_fifty_steps_on_a_mesh_equal_plain_tf_keras(
    folder: Path, one_device: dict[str, np.ndarray], size: int
) -> None:
    got = work(folder, {"batch": size}, runs())
    assert set(one_device) <= set(got)
    assert differences(one_device, got) == []


@pytest.mark.nightly
def test_the_same_holds_with_the_all_reduces_left_separate(folder: Path, one_device: dict[str, np.ndarray]) -> None:
    chosen = [run for run in runs() if run["name"] in ("adam", "sgd_nesterov_stairs", "rmsprop")]
    got = work(folder, {"batch": 8}, chosen, combine=False)
    assert len(got) > 3 * 9
    assert differences(one_device, got) == []


@pytest.mark.nightly
def test_training_changes_every_parameter(one_device: dict[str, np.ndarray]) -> None:
    for name in ("d1/kernel", "d1/bias", "d2/kernel", "d2/bias"):
        moved = np.abs(one_device[f"adam:{name}"] - one_device[f"adam:initial/{name}"]).max()
        assert moved > 1e-3, name
