"""What stands for the operations that DTensor lacks gives what tf_keras's own layers give, gradients included."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.model.layers_worker import CASES

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.model.layers_worker"]
    done = forks.run(command, library="tensorflow", cwd=ROOT, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: f"{CASES[index][0]}-{index}")
def test_a_layer_and_its_gradients_equal_the_stock_ones(seen: dict[str, Any], index: int) -> None:
    difference = seen["cases"][index]
    assert not isinstance(difference, str), difference
    assert difference < 5e-5  # float32 sums of up to 300 terms of size 1 in another order


def test_dropout_keeps_its_share_and_scales_it(seen: dict[str, Any]) -> None:
    assert abs(seen["dropout"]["kept"] - 0.75) < 0.03
    assert seen["dropout"]["value"] == pytest.approx(1 / 0.75)
    assert seen["dropout"]["evaluation"]


def test_a_dropout_mask_is_a_function_of_layer_seed_and_step(seen: dict[str, Any]) -> None:
    assert seen["dropout"]["repeats"]
    assert seen["dropout"]["differ"] == [True, True, True]


def test_spatial_dropout_drops_whole_channels(seen: dict[str, Any]) -> None:
    assert seen["dropout"]["whole channels"]


def test_a_dropout_layer_called_twice_and_two_layers_of_one_name_draw_different_masks(seen: dict[str, Any]) -> None:
    assert seen["dropout"]["first"]  # the first draw is that of a layer called once
    assert seen["dropout"]["both"] == pytest.approx([0.75**2, 0.75**2], abs=0.03)


def test_a_recurrent_layer_draws_the_same_dropout_masks_unrolled_and_in_a_loop(seen: dict[str, Any]) -> None:
    assert seen["recurrent"] < 1e-6
