"""keras_dtensor and jax are one model: the same weights and batches give the same losses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.jax_runs import CONVNET, RESNET, VIT, Arrays, relative, work

pytestmark = pytest.mark.slow

STEPS = 20
RUNS = [
    {
        "name": "mlp",
        "target": "runner.model.mlp.sequential",
        "options": {"hidden": [128]},
        "batch": 64,
        "steps": STEPS,
    },
    {**VIT, "name": "vit", "options": {"depth": 2, "dropout": 0.1}},
    {**RESNET, "name": "resnet", "steps": STEPS},
    {**CONVNET, "name": "convnet", "steps": STEPS},
]
# Batch normalisation after ReLU's kinks: the two libraries' convolutions round differently, and Adam turns rounding
# in a gradient of zero into whole steps.
ALLOWED = {"mlp": 1e-5, "vit": 1e-5, "resnet": 2e-3, "convnet": 2e-3}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Arrays, Arrays]:
    folder = tmp_path_factory.mktemp("parity")
    jax = work(folder / "jax.npz", "jax", {"batch": 2}, RUNS)
    return jax, work(folder / "dtensor.npz", "keras_dtensor", {"batch": 2}, RUNS, start=str(folder / "jax.npz"))


@pytest.mark.parametrize("name", list(ALLOWED))
def test_losses_agree_from_the_same_weights(both: tuple[Arrays, Arrays], name: str) -> None:
    jax, dtensor = both
    assert relative(dtensor, jax, f"{name}:loss") < ALLOWED[name]


@pytest.mark.parametrize("name", ["mlp", "vit"])
def test_gradients_agree(both: tuple[Arrays, Arrays], name: str) -> None:
    jax, dtensor = both
    keys = [key for key in jax if key.startswith(f"{name}:gradient/")]
    assert len(keys) >= 4
    for key in keys:
        assert np.abs(jax[key] - dtensor[key]).max() < 1e-5 * max(np.abs(dtensor[key]).max(), 1e-2), key


def test_states_have_the_same_paths_and_shapes(both: tuple[Arrays, Arrays]) -> None:
    shapes = [
        {key: array.shape for key, array in arrays.items() if "/" in key and ":cost/" not in key} for arrays in both
    ]
    assert shapes[0] == shapes[1]
    assert "convnet:initial/conv1_norm/moving_mean" in shapes[0]
    assert "vit:initial/optimizer/m/block_0/attention/query/kernel" in shapes[0]
