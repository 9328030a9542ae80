"""Tokens written with a key/value cache are those of computing the whole row for each token, on every mesh."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.engine.decoding_worker import HUB, PROMPTS, SAMPLINGS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Runs = list[tuple[str, dict[str, Any]]]
FORMS: Runs = [
    ("gpt2", {}),
    ("llama", {}),
    ("tied", {"fused_head": True}),
    ("one_key_head", {"fused_head": True}),
    ("segments", {"scan": True}),
    ("mistral", {}),
    ("capped", {"fused_head": True}),
    ("gemma2", {"scan": True}),
    ("gemma3", {"scan": True}),
    ("mixtral", {"scan": True, "fused_head": True}),
    ("local_and_global", {"scan": True}),
    ("dropout", {"scan": True, "remat": "full", "fused_head": True}),
]
# Float32 sums of the same terms in another order, through two blocks.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def work(folder: Path, mesh: str, runs: Runs, precision: str = "float32") -> dict[str, np.ndarray]:
    """Runs the worker and returns its arrays."""
    out = folder / f"{mesh}.npz"
    request = json.dumps({"mesh": mesh, "runs": runs, "precision": precision})
    command = [sys.executable, "-m", "tests.engine.decoding_worker", str(out), request]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="jax", cwd=ROOT, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


def check_equal(found: dict[str, np.ndarray], runs: Runs) -> None:
    """Checks the tokens and the logits of every run."""
    for name, more in runs:
        key = ",".join([name, *(f"{option}={value}" for option, value in more.items())])
        for kind in SAMPLINGS:
            for row in range(len(PROMPTS)):
                tokens = found[f"{key}:{kind}/{row}/cached"]
                np.testing.assert_array_equal(tokens, found[f"{key}:{kind}/{row}/computed"], f"{key} {kind} {row}")
        if name in HUB:
            continue
        cached = found[f"{key}:logits cached"]
        largest = np.abs(cached).max()
        assert largest > 1.0, "weights that large distinguish a wrong cache from rounding"
        np.testing.assert_allclose(cached / largest, found[f"{key}:logits computed"] / largest, **CLOSE, err_msg=key)


@pytest.mark.nightly
def test_a_cache_split_by_rows_and_heads_writes_the_same_tokens(tmp_path: Path) -> None:
    runs = FORMS[:2]
    found = work(tmp_path, "batch4_model2", runs)
    check_equal(found, runs)
    # Rows over batch=4; 4 and 2 heads of keys over model=2.
    for key, heads in (("gpt2", 4), ("llama", 2)):
        assert found[f"{key}:shape"].tolist() == [8, 24, heads, 8]
        assert found[f"{key}:shard"].tolist() == [2, 24, heads // 2, 8]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mesh",
    [
        "single",
        "batch8_fsdp",
        "batch2_model4",
        "batch4_model2_both",
        "model4_small2",
        "sequence2_model2",
        "batch2_sequence4_fsdp",
        "sequence4_of_heads",
    ],
)
def test_every_form_of_the_transformer_writes_the_same_tokens(tmp_path: Path, mesh: str) -> None:
    check_equal(work(tmp_path, mesh, FORMS), FORMS)


@pytest.mark.nightly
def test_a_cache_in_bfloat16_has_the_logits_up_to_its_rounding(tmp_path: Path) -> None:
    found = work(tmp_path, "batch4_model2", FORMS[:2], precision="bfloat16")
    for name in ("gpt2", "llama"):
        cached = found[f"{name}:logits cached"]
        # Eight bits of precision, through two blocks.
        difference = np.abs(cached - found[f"{name}:logits computed"]).max() / np.abs(cached).max()
        assert difference < 0.03


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", ["single", "batch2_model4"])
def test_causal_language_models_of_keras_hub_write_the_same_tokens(tmp_path: Path, mesh: str) -> None:
    runs: Runs = [(name, {}) for name in HUB]
    check_equal(work(tmp_path, mesh, runs), runs)
