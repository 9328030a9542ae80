"""A batch computed in micro-batches gives the whole batch's update; averages of the weights are what is said."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.engine.microbatches_worker import DECAY, STEPS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Arrays = dict[str, np.ndarray]
# The same terms in another order, over 12 steps; a micro-batch too few or too many is off by a fourth.
RELATIVE, ABSOLUTE = 1e-5, 1e-6


def work(out: Path, engine: str) -> Arrays:
    command = [sys.executable, "-m", "tests.engine.microbatches_worker", str(out), engine]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    library = "tensorflow" if engine == "keras_dtensor" else "jax"
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.fixture(scope="module", params=[pytest.param("keras_dtensor", marks=pytest.mark.nightly), "jax"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    return work(tmp_path_factory.mktemp("microbatches") / "found.npz", request.param)


def of(found: Arrays, case: str) -> Arrays:
    return {key.removeprefix(f"{case}:"): value for key, value in found.items() if key.startswith(f"{case}:")}


def close(got: np.ndarray, expected: np.ndarray, name: str) -> None:
    np.testing.assert_allclose(got, expected, rtol=RELATIVE, atol=ABSOLUTE, err_msg=name)


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["four", "both"])
def test_micro_batches_give_the_losses_gradients_and_updates_of_the_whole_batch(found: Arrays, case: str) -> None:
    whole, cut = of(found, "whole"), of(found, case)
    names = [name for name in whole if name not in ("count", "bytes", "eval", "eval_weights", "plain")]
    assert {"loss", "gradient/d1/kernel", "d2/bias", "optimizer/v/d1/kernel"} <= set(names)
    for name in names:
        close(cut[name], whole[name], name)


def test_a_run_without_averages_evaluates_and_exports_its_weights(found: Arrays) -> None:
    whole, cut = of(found, "whole"), of(found, "four")
    for name in ("eval", "eval_weights", "plain"):
        close(cut[name], whole[name], name)
    assert not [name for name in cut if name.startswith(("ema/", "sum"))]


def test_micro_batches_communicate_as_often_as_they_are(found: Arrays) -> None:
    whole, two, four = (of(found, case) for case in ("whole", "both", "four"))
    # Engines that count none have 0.
    assert four["count"] == 2 * two["count"] == 4 * whole["count"]
    assert four["bytes"] == 2 * two["bytes"] == 4 * whole["bytes"]


@pytest.mark.parametrize("case", ["average", "both"])
def test_the_average_follows_the_weights_from_the_first_update_on(found: Arrays, case: str) -> None:
    held = of(found, case)
    expected = held["weights"][0].astype(np.float64)
    for weights in held["weights"][1:]:
        expected = DECAY * expected + (1 - DECAY) * weights
    assert len(held["weights"]) == 7, "the steps one by one; the last five are a call"
    close(of(found, "average")["weights"], of(found, "whole")["weights"], "averages change no training")
    later = DECAY ** (STEPS - 7) * expected  # what is left of it after the call
    rest = held["ema/d1/kernel"] - later
    share = 1 - DECAY ** (STEPS - 7)
    span = np.abs(held["d1/kernel"] - held["weights"][-1]).max()
    assert np.abs(rest / share - held["d1/kernel"]).max() <= span + 1e-4


@pytest.mark.parametrize("case", ["average", "both"])
def test_evaluation_and_export_use_the_averages_and_leave_the_weights(found: Arrays, case: str) -> None:
    held, whole = of(found, case), of(found, "whole")
    assert held["eval"] == held["eval_weights"]
    assert abs(held["eval"] - whole["eval"]) > 1e-3
    assert np.abs(held["plain"] - whole["plain"]).max() > 1e-3
    close(held["d1/kernel"], whole["d1/kernel"], "d1/kernel")


def test_training_on_from_a_loaded_state_depends_on_nothing_else(found: Arrays) -> None:
    for case in ("whole", "four", "average", "both"):
        first, second = of(found, case)["twice"]
        assert first == second


def test_keras_3_accumulates_and_averages_to_the_same(tmp_path: Path) -> None:
    found = work(tmp_path / "stock.npz", "stock")
    for case in ("four", "average"):
        stock, ours = of(found, f"stock:{case}"), of(found, f"ours:{case}")
        assert len(stock) == (8 if case == "average" else 4)
        for path, value in stock.items():
            close(ours[path], value, f"{case} {path}")
