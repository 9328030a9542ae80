"""The campaign of growth at reduced sizes, and that it would see what it is for."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaign import growth, growth_base, growth_records
from tests.campaign.growth_base import Dimension
from tests.forks import ROOT

_COUNTED = [one for one in growth_records.DIMENSIONS if "CPU" not in one.name and "CSV" not in one.name]


@pytest.mark.nightly
def test_no_cost_grows_faster_than_is_stated() -> None:
    command = [sys.executable, "-m", "tests.campaign", "growth"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"growth: {growth.CASES} of {growth.CASES} held" in done.stdout


@pytest.mark.parametrize("dimension", _COUNTED, ids=lambda dimension: dimension.name.split(" (")[0])
def test_what_is_counted_grows_as_stated_at_a_tenth_of_the_sizes(dimension: Dimension) -> None:
    *sizes, _ = dimension.sizes
    case = growth.tried(replace(dimension, sizes=tuple(sizes)))
    assert case.held, case.note


@pytest.mark.parametrize(("power", "held"), [(0.0, True), (1.0, True), (1.5, False), (2.0, False)])
def test_a_cost_that_grows_faster_is_seen(power: float, held: bool) -> None:
    dimension = Dimension("rows", (10, 100, 1000), 1.1, lambda size: float(size**power))
    assert growth.tried(dimension).held == held


def test_a_cost_that_grows_faster_only_at_the_end_is_seen_and_noise_is_not() -> None:
    late = Dimension("rows", (10, 100, 1000), 1.1, {10: 1.0, 100: 2.0, 1000: 100.0}.__getitem__)
    assert not growth.tried(late).held
    noise = Dimension("rows", (10, 100, 1000), 1.1, {10: 0.0001, 100: 0.09, 1000: 1.0}.__getitem__)
    assert growth.tried(noise).held


def test_calls_are_counted_alike_each_time(tmp_path: Path) -> None:
    def looked() -> None:
        for _ in range(50):
            tmp_path.exists()

    first = growth_base.calls(looked)
    assert first == growth_base.calls(looked) >= 50
