"""One builder serves tf_keras and Keras 3: with the same weights both give the same logits, layer for layer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks

# Builds each network, gives it weights drawn by path, and writes its logits and its variables' shapes.
SCRIPT = """
import importlib, sys, zlib
import numpy as np
keras = importlib.import_module(sys.argv[1])
images = np.random.default_rng(0).random((3, 28, 28, 1)).astype("float32")
arrays = {}
for name in ("convnet", "resnet", "vit"):
    builder = importlib.import_module(f"runner.model.{name}").build
    model = builder(keras=keras, inputs=(28, 28, 1), num_classes=10)
    for layer in model.layers:
        for variable in layer.weights:
            short = variable.name.split(":")[0].split("/")[-1]
            path = f"{layer.name}/{short}"
            if "seed" in path:
                continue
            draw = np.random.default_rng(zlib.crc32(path.encode())).normal(size=tuple(variable.shape))
            variable.assign((np.abs(draw) if "variance" in path else 0.3 * draw).astype("float32"))
            arrays[f"{name}:{path}"] = np.asarray(variable.shape)
    arrays[f"{name}:logits"] = np.asarray(model(images))
np.savez(sys.argv[2], **arrays)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("networks")
    return {library: _build(folder, library) for library in ("tf_keras", "keras")}


def _build(folder: Path, library: str) -> dict[str, np.ndarray]:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    out = folder / f"{library}.npz"
    command = [sys.executable, "-c", SCRIPT, library, str(out)]
    done = forks.run(command, library="tensorflow", env=environment, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(out))


@pytest.mark.slow
def test_variables_have_the_same_paths_and_shapes(built: dict[str, dict[str, np.ndarray]]) -> None:
    assert set(built["tf_keras"]) == set(built["keras"])
    for key, value in built["tf_keras"].items():
        assert value.shape == built["keras"][key].shape
        if not key.endswith("logits"):
            assert (value == built["keras"][key]).all(), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convnet", "resnet", "vit"])
def test_logits_are_the_same(built: dict[str, dict[str, np.ndarray]], name: str) -> None:
    one, other = built["tf_keras"][f"{name}:logits"], built["keras"][f"{name}:logits"]
    assert one.shape == (3, 10)
    # Sums of up to 864 float32 terms in another order, relative to the largest logit.
    np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(one).max())


@pytest.mark.slow
def test_the_convnet_has_the_shapes_of_the_keras_guide(built: dict[str, dict[str, np.ndarray]]) -> None:
    kernels = {key.split(":")[1]: tuple(value) for key, value in built["keras"].items() if key.startswith("convnet:")}
    assert kernels["conv1/kernel"] == (3, 3, 1, 12)
    assert kernels["conv2/kernel"] == (6, 6, 12, 24)
    assert kernels["conv3/kernel"] == (6, 6, 24, 32)
    assert kernels["conv3/bias"] == (32,)
    assert kernels["dense1/kernel"] == (32, 256)
    assert "conv1/bias" not in kernels
    assert "conv1_norm/gamma" not in kernels
