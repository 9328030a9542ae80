"""`engine.state`: what is held in which type, and that it trains as stock Keras does in bfloat16 on one device."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import numpy as np
import pytest

from runner.engine.base import VariableInfo
from runner.errors import ConfigError
from runner.optim.paths import is_ema, is_slot
from runner.training.checkpoint import resume
from tests import forks
from tests.engine.jax_runs import ROOT

# A mesh adds up bfloat16 terms in another order, by 2**-8 each; a learning rate off by a tenth is off by 0.1.
NEAR = 0.05
# Where steps are a few bfloat16 ulps of the weight, a rounding that falls the other way is a good share of them.
NEAR_ULPS = 0.1
ROUNDING = "key/bias"  # whose gradient is zero but for rounding: a softmax does not see it


def work(*arguments: str) -> Any:
    """Runs the worker and returns what it prints."""
    command = [sys.executable, "-m", "tests.engine.state_worker", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="jax", cwd=ROOT, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def brief() -> Any:
    return work("brief")


@pytest.mark.nightly
def test_statistics_and_averages_are_float32_in_every_state_and_frozen_weights_need_no_master(brief: Any) -> None:
    for state, weight in (("bfloat16", "bfloat16"), ("master", "float32")):
        kinds = brief[state]["kinds"]
        assert {kinds[f"norm/moving_{name}"] for name in ("mean", "variance")} == {"float32"}
        assert kinds["table/embeddings"] == "bfloat16"
        assert {kinds[f"{path}/kernel"] for path in ("held", "head")} == {weight}
        assert {kind for path, kind in kinds.items() if is_slot(path)} == {weight}
        assert {kind for path, kind in kinds.items() if is_ema(path)} == {"float32"}
    assert brief["bfloat16"]["least"] >= 0.0, "the constraint is kept"


def test_gradients_of_a_token_that_comes_often_are_added_up_in_float32(brief: Any) -> None:
    assert max(brief["frequent"].values()) < 0.02, "bfloat16 sums of equal terms stand still at 256 of them"


@pytest.mark.nightly
def test_it_trains_as_stock_keras_under_its_bfloat16_policy_on_one_device() -> None:
    told = work()
    assert told["draws"] == [], "a bfloat16 value is the float32 draw, rounded"
    for state, found in told["found"].items():
        assert found["missing"] == []
        assert found["resumed"] == [], "a resumed run gives the same bits"
        assert found["plain"], "a plain model has float32 weights, which any library reads"
        losses, wanted = found["losses"]
        np.testing.assert_allclose(losses, wanted, rtol=1e-3)
        for path, share in found["apart"].items():
            # What rounding keeps where it is, as scales of 1, has not moved on either side.
            still = math.isnan(share)
            rounds = state == "bfloat16" and not is_slot(path) and not is_ema(path)
            assert ROUNDING in path or still or share < (NEAR_ULPS if rounds else NEAR), (state, path, share)


class _Engine:
    """An engine as `resume.load` sees it, of one weight."""

    trainable = ("d1/kernel",)

    def __init__(self, **kinds: str) -> None:
        self._kinds = {path.replace("__", "/"): kind for path, kind in kinds.items()}
        self.loaded: object = None

    def variables(self) -> dict[str, VariableInfo]:
        return {path: VariableInfo((2,), kind, (None,), 8) for path, kind in self._kinds.items()}

    def load_state(self, state: object) -> None:
        self.loaded = state


class _Checkpoint(dict[str, str]):
    """A checkpoint as `resume.load` sees it: path -> dtype."""

    folder = "c"

    def shape(self, path: str) -> tuple[int, ...]:
        del path
        return (2,)

    def dtype(self, path: str) -> str:
        return self[path]


@pytest.mark.parametrize(
    ("held", "own", "refused"),
    [
        ({"d1/kernel": "float32", "d0/kernel": "float32"}, {"d1__kernel": "bfloat16", "d0__kernel": "bfloat16"}, True),
        ({"d1/kernel": "float32", "d0/kernel": "float32"}, {"d1__kernel": "float32", "d0__kernel": "bfloat16"}, False),
        (
            {"d1/kernel": "bfloat16", "d0/kernel": "bfloat16"},
            {"d1__kernel": "float32", "d0__kernel": "float32"},
            False,
        ),
    ],
)
def test_a_load_never_rounds_what_steps_change(held: dict[str, str], own: dict[str, str], *, refused: bool) -> None:
    engine, checkpoint = _Engine(**own), _Checkpoint(held)
    if not refused:
        resume.load(engine, checkpoint)  # type: ignore[arg-type]
        assert engine.loaded is checkpoint
        return
    with pytest.raises(
        ConfigError, match=r"engine\.state=bfloat16: would round d1/kernel, .* in float32; set engine\.state=master"
    ):
        resume.load(engine, checkpoint)  # type: ignore[arg-type]
