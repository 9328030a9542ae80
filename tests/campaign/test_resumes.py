"""A run that is resumed is bitwise identical under every schedule, with and without reductions at plateaus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from runner.optim.schedules import SCHEDULES
from tests.campaign import resumes
from tests.campaign.mutations import Options, config_of, make_scene

_KEY = "optimizer.schedule"
_NO_PLATEAU = [f"{_KEY}.plateau.metric=null", f"{_KEY}.plateau.min_delta=0.0001", f"{_KEY}.plateau.patience=10"]
_WHOLE_RUN = f"{_KEY}.decay_steps=null"
# Options with which no two steps of a part of the run have the same rate, and a change comes after each resume.
OPTIONS: dict[str, Sequence[str]] = {
    "constant": [_WHOLE_RUN],
    "cosine": [_WHOLE_RUN, f"{_KEY}.warmup_steps=3"],
    "exponential": [f"{_KEY}.decay_steps=3"],
    "piecewise": [_WHOLE_RUN, f"{_KEY}.boundaries=[3,7,11]", f"{_KEY}.factors=[1.0,0.5,0.8,0.2]"],
    "linear": [_WHOLE_RUN, f"{_KEY}.warmup_steps=6"],
    "polynomial": [_WHOLE_RUN, f"{_KEY}.power=2.0"],
    "cosine_restarts": [f"{_KEY}.decay_steps=3", f"{_KEY}.cycle_factor=1.5", f"{_KEY}.peak_factor=0.8"],
    "inverse_sqrt": [_WHOLE_RUN, f"{_KEY}.warmup_steps=4"],
    "warmup_stable_decay": [f"{_KEY}.decay_steps=6", f"{_KEY}.warmup_steps=2"],
    "one_cycle": [_WHOLE_RUN, f"{_KEY}.warmup_steps=7"],
    "custom": [_WHOLE_RUN, f"{_KEY}._target_=tests.optim.rates.falling"],
}
# Rates of the run of a constant schedule: halved by every second evaluation without an improvement.
_REDUCED = [0.01] * 9 + [0.005] * 6


def resumed(folder: Path, engine: str, *overrides: str) -> list[float]:
    """Resumes a run of a schedule and checks that it is the same; returns the rate of each step."""
    config = config_of("mlp", engine, "resumed", *overrides)
    scene = make_scene("mlp", engine, "resumed", folder)
    (result,) = scene.results(config, Options(mutation="^$"), 0, 0)
    assert (result.outcome, result.named) == ("verified", ())
    rates: list[float] = resumes.whole_arrays(folder)["rate"].tolist()
    return rates


def test_every_schedule_is_resumed() -> None:
    assert {*OPTIONS} == {*SCHEDULES}


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_is_bitwise_identical_under_each_schedule(tmp_path: Path, name: str) -> None:
    rates = resumed(tmp_path, "jax", f"{_KEY}.name={name}", *OPTIONS[name], *_NO_PLATEAU)
    assert len(rates) == 15
    assert (len(set(rates[5:])) == 1) == (name == "constant"), rates


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
def test_a_resumed_run_is_reduced_at_the_plateaus_of_the_whole_run(tmp_path: Path, engine: str) -> None:
    rates = resumed(tmp_path, engine, f"{_KEY}.name=constant", *OPTIONS["constant"])
    np.testing.assert_allclose(rates, _REDUCED, rtol=1e-7)


@pytest.mark.nightly
def test_schedule_and_plateau_are_resumed_together(tmp_path: Path) -> None:
    rates = resumed(tmp_path, "jax", f"{_KEY}.name=linear", *OPTIONS["linear"])
    # Six steps of warm-up and nine of a linear decay; half of that from step 9 on.
    expected = [0.01 * step / 6 for step in range(6)] + [0.01 * (9 - step) / 9 for step in range(9)]
    halved = [rate / 2 if step >= 9 else rate for step, rate in enumerate(expected)]
    np.testing.assert_allclose(rates, halved, rtol=1e-6)
