"""Losses over the pairs of a batch on a mesh: what Keras trains on one device with a loss of the whole batch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
PLACES: list[tuple[str, dict[str, int], str]] = [
    ("jax", {"batch": 4, "model": 2}, "megatron"),
    ("jax", {"batch": 8}, "replicated"),
    ("keras_dtensor", {"batch": 4, "model": 2}, "megatron"),
    ("keras_dtensor", {"batch": 8}, "replicated"),
]
# Float32 sums of the same terms in another order, over 8 steps. Negatives of one shard alone, or padding among them,
# change the loss by 1e-2 and more.
RELATIVE, ABSOLUTE = 1e-5, 1e-6


def work(out: Path, **request: Any) -> dict[str, np.ndarray]:
    command = [sys.executable, "-m", "tests.engine.pairs_worker", str(out), json.dumps(request)]
    library = "jax" if request["engine"] == "jax" else "tensorflow"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.mark.parametrize("loss", ["in_batch_softmax", "n_pairs"])
@pytest.mark.parametrize(("engine", "axes", "layout"), PLACES)
def test_pairs_train_on_a_mesh_as_keras_trains_them(
    tmp_path: Path, engine: str, axes: dict[str, int], layout: str, loss: str
) -> None:
    stock = work(tmp_path / "stock.npz", engine=engine, axes=None, layout="replicated", loss=loss)
    mesh = work(tmp_path / "mesh.npz", engine=engine, axes=axes, layout=layout, loss=loss)
    assert {"step/loss", "eval/loss", "d1/kernel", "d2/bias"} <= set(stock)
    for name, expected in stock.items():
        value = mesh[name].reshape(expected.shape)
        np.testing.assert_allclose(value, expected, rtol=RELATIVE, atol=ABSOLUTE, err_msg=name)
