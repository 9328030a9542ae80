"""A short campaign of runs with losses."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests import object_server
from tests.campaign import survive
from tests.campaign.losing_store import PART, losing_store
from tests.campaign.own_network import own_network
from tests.campaign.processes import Config
from tests.campaign.survive import NETWORK, STARTERS, Loss, Plan, References, Wide, tried
from tests.object_server import CUTS, UNAVAILABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_run_whose_network_goes_down_ends_as_one_whose_does_not(tmp_path: Path) -> None:
    plan = Plan(Config("jax", 2), "launcher", (Loss(NETWORK, False, 2, 0.1),))
    with own_network() as is_possible:
        if not is_possible:
            pytest.skip("needs the right to make a network namespace")
        case = tried(plan, random.Random(1), tmp_path / "case", References(tmp_path / "whole"))
    assert case.held, case.note


@pytest.mark.nightly
@pytest.mark.skipif(object_server.interpreter() is None, reason="needs moto: see tests/object_server.py")
@pytest.mark.parametrize(
    ("config", "losses"),
    [
        (Config("keras_dtensor", 2), (Loss(UNAVAILABLE, False, 2, 0.1), Loss("SIGKILL", False, 2, 0.1))),
        (Wide("jax", 2), (Loss(PART, False, 1, 0.1), Loss(CUTS, False, 1, 0.1))),
    ],
)
def test_a_run_whose_store_loses_answers_and_parts_ends_as_one_with_local_checkpoints(
    config: Config, losses: tuple[Loss, ...], tmp_path: Path
) -> None:
    plan = Plan(config, "launcher", losses, is_stored=True)
    with losing_store(tmp_path) as store:
        assert store is not None
        case = tried(plan, random.Random(1), tmp_path / "case", References(tmp_path / "whole"), store)
    assert case.held, case.note
    assert "2 losses" in case.note
    assert store.proxy.rejected > 0
    assert bool(store.proxy.lost) == isinstance(config, Wide)
    assert all("partNumber" in path for path in store.proxy.lost)


def test_what_a_machine_lacks_is_told() -> None:
    of_store = Plan(Config("jax", 8), "launcher", (Loss("SIGKILL", False, 1, 0.0),), is_stored=True)
    of_network = Plan(Config("jax", 8), "launcher", (Loss(NETWORK, False, 1, 0.0),))
    assert "moto" in of_store.lacks(None, has_network=True)
    assert "network" in of_network.lacks(None, has_network=False)
    assert not of_network.lacks(None, has_network=True)


def test_the_same_seed_gives_the_same_cases_and_many_have_every_loss() -> None:
    plans = [survive.drawn(number, 3)[0] for number in range(200)]
    assert plans == [survive.drawn(number, 3)[0] for number in range(200)]
    losses = [(plan.is_stored, loss.kind) for plan in plans for loss in plan.losses]
    expected = {(place == "store", kind) for place, kinds in survive.KINDS.items() for kind in kinds}
    assert set(losses) == expected
    assert {loss.starter for plan in plans for loss in plan.losses} == {True, False}
    of_all = {(plan.config, plan.starter) for plan in plans}
    assert of_all == {(config, starter) for config in survive.CONFIGS for starter in STARTERS}
