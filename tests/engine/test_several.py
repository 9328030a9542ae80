"""Several outputs, losses and inputs on a mesh: what `compile(loss={...}, loss_weights={...})` does on one device."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.engine.several_worker import PADDED
from tests.nightly import nightly_except

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLACES: list[tuple[str, dict[str, int], str, int]] = [
    ("jax", {"batch": 4, "model": 2}, "megatron", 1),
    ("jax", {"batch": 8}, "replicated", 2),
    ("keras_dtensor", {"batch": 4, "model": 2}, "megatron", 1),
    ("keras_dtensor", {"batch": 8}, "replicated", 2),
]
# Float32 sums of the same terms in another order, over 8 steps. A loss weight of 1, or padding that counted, is off by
# 1e-2 and more.
RELATIVE, ABSOLUTE = 1e-5, 1e-6


def work(out: Path, **request: Any) -> dict[str, np.ndarray]:
    command = [sys.executable, "-m", "tests.engine.several_worker", str(out), json.dumps(request)]
    library = "jax" if request["engine"] == "jax" else "tensorflow"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.mark.parametrize(("engine", "axes", "layout", "accumulate"), nightly_except(PLACES[:1], PLACES))
def test_several_outputs_train_on_a_mesh_as_keras_trains_them(
    tmp_path: Path, engine: str, axes: dict[str, int], layout: str, accumulate: int
) -> None:
    stock = work(tmp_path / "stock.npz", engine=engine, axes=None, layout="replicated", accumulate=accumulate)
    mesh = work(tmp_path / "mesh.npz", engine=engine, axes=axes, layout=layout, accumulate=accumulate)
    compared = {"step/loss", "step/age_loss", "step/sick_accuracy", "step/tags_loss", "eval/loss", "eval/sick_loss"}
    assert compared | {"eval/age_mae", "outputs/tags", "d1/kernel", "d2/bias", "age/kernel"} <= set(stock)
    assert len(mesh["outputs/age"]) == 32 - PADDED
    for name, expected in stock.items():
        value = mesh[name].reshape(expected.shape)
        np.testing.assert_allclose(value, expected, rtol=RELATIVE, atol=ABSOLUTE, err_msg=name)
