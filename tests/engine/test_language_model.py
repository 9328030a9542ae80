"""Language models train on every mesh as stock Keras does on one device, by the tokens that count."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.engine.language_model_worker import BATCH, CASES, PADDED, TOKENS, UNITS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Float32 sums of the same terms in another order. Means of examples' means would be off by a tenth.
RELATIVE, ABSOLUTE = 2e-5, 2e-6
LIBRARIES = {"jax": "jax", "keras_dtensor": "tensorflow"}


@pytest.mark.nightly
@pytest.mark.parametrize("engine", list(CASES))
def test_every_mesh_trains_as_stock_keras_does_with_weights_of_samples(tmp_path: Path, engine: str) -> None:
    out = tmp_path / "found.npz"
    command = [sys.executable, "-m", "tests.engine.language_model_worker", str(out), engine]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library=LIBRARIES[engine], cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(np.load(out))
    stock = {key.removeprefix("stock:"): value for key, value in found.items() if key.startswith("stock:")}
    assert {"gradient/head/kernel", "eval/bits_per_byte", "step/accuracy", "embedding/embeddings"} <= set(stock)
    texts = set()
    for name in CASES[engine]:
        if not np.array_equal(found[f"{name}:begun/head/kernel"], found["batch8:begun/head/kernel"]):
            pytest.fail(f"{name} begins with other weights")
        for key, value in stock.items():
            np.testing.assert_allclose(
                found[f"{name}:{key}"], value, rtol=RELATIVE, atol=ABSOLUTE, err_msg=f"{name} {key}"
            )
        assert found[f"{name}:examples"] == BATCH - PADDED
        assert not found[f"{name}:outputs"].size, "an evaluation keeps no logits"
        texts.add(str(found[f"{name}:sample"]))
    assert found["batch4_model2:gathered"] < BATCH // 4 * TOKENS * UNITS, "logits that are split are never gathered"
    assert len(texts) == 1, "the same text on every mesh"
    assert "\n--- greedy\nab" in texts.pop()
