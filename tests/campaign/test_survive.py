"""A short campaign of runs with losses."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.campaign import survive
from tests.campaign.processes import Config
from tests.campaign.survive import STARTERS, Loss, Plan, References, tried

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.mark.campaign
@pytest.mark.rotates(every=8)
@pytest.mark.parametrize("starter", STARTERS)
@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
def test_a_run_that_loses_processes_and_its_starter_ends_as_one_that_does_not(
    tmp_path: Path, engine: str, starter: str
) -> None:
    losses = (Loss("SIGKILL", False, 2, 0.1), Loss("SIGKILL", True, 2, 0.0))
    plan = Plan(Config(engine, 2), starter, losses)
    case = tried(plan, random.Random(0), tmp_path / "case", References(tmp_path / "whole"))
    assert case.held, case.note
    assert "2 losses" in case.note


def test_the_same_seed_gives_the_same_cases_and_many_have_every_loss() -> None:
    plans = [survive.drawn(number, 3)[0] for number in range(100)]
    assert plans == [survive.drawn(number, 3)[0] for number in range(100)]
    losses = [loss for plan in plans for loss in plan.losses]
    assert {loss.kind for loss in losses} == set(survive._KINDS)
    assert {loss.starter for loss in losses} == {True, False}
    assert {plan.starter for plan in plans} == set(STARTERS)
