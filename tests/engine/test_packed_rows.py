"""Packed rows train a transformer as the same examples do that are padded in rows of their own, on every mesh."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
# Float32 sums of the same terms in another order, through two blocks and three steps: measured up to 1.1e-6.
RELATIVE = 1e-5
# A softmax does not change when all of its scores do: the gradient of this bias is rounding and nothing else.
ROUNDING = "attention/key/bias"
Arrays = dict[str, np.ndarray]
# (mesh, options of the model, packed). A process makes as many devices as its first mesh has.
ON_JAX = [
    ("batch8", "gpt2", True),
    ("single", "gpt2", False),
    ("batch4_model2", "llama", True),
    ("single", "llama", False),
    ("batch4_model2", "fused", True),
    ("single", "fused", False),
]


def work(folder: Path, engine: str, library: str, runs: list[tuple[str, str, bool]]) -> Arrays:
    """Runs the worker and returns its arrays."""
    out = folder / f"{engine}.npz"
    request = json.dumps({"engine": engine, "runs": runs})
    command = [sys.executable, "-m", "tests.engine.packed_rows_worker", str(out), request]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


def differences(padded: Arrays, packed: Arrays, runs: list[tuple[str, str, bool]]) -> list[str]:
    """Returns what differs by more than rounding from the padded rows on one device."""
    found = []
    for mesh, name, is_packed in runs:
        own = f"{mesh}:{name}:{is_packed}:"
        # Packed rows have segments and positions too.
        assert packed[f"{own}inputs"] == (3 if is_packed else 1)
        prefix = f"single:{name}:False:"
        expected = {key.removeprefix(prefix): value for key, value in padded.items() if key.startswith(prefix)}
        assert {"loss", "eval", "gradient/head/kernel", "head/kernel"} <= set(expected)
        for path, value in expected.items():
            if ROUNDING in path or path == "inputs":
                continue
            apart = np.abs(packed[own + path] - value).max() / np.abs(value).max()
            if not apart <= RELATIVE:
                found.append(f"{own}{path} is off by {apart:.1e}")
    return found


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """Every case of engine jax, and with it the padded rows on one device."""
    return work(tmp_path_factory.mktemp("jax"), "jax", forks.JAX, ON_JAX)


def test_packed_rows_on_jax_have_the_losses_gradients_and_weights_of_padded_ones(on_jax: Arrays) -> None:
    assert differences(on_jax, on_jax, ON_JAX) == []


def test_packed_rows_on_dtensor_have_the_losses_gradients_and_weights_of_padded_ones(
    on_jax: Arrays, tmp_path: Path
) -> None:
    runs = [("batch4_model2", "gpt2", True)]
    got = work(tmp_path, "keras_dtensor", forks.TENSORFLOW, runs)
    assert differences(on_jax, got, runs) == []
