"""The mutation campaign, shortened; and that its judgement can fail."""

from pathlib import Path

import pytest

from tests.campaign import mutations, networks
from tests.campaign.mutations import Result
from tests.campaign.mutations_table import ENGINES, MUTATIONS, Mutation

BROKEN = next(each for each in MUTATIONS if each.path and not each.named)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "network", "setting", "cases"),
    [
        ("jax", "tokens", "sgd", 6),
        ("jax", "convnet", "adamw", 6),
        ("jax", "mlp", "groups", 0),
        ("keras_dtensor", "mlp", "adamw", 6),
    ],
)
def test_broken_engines_are_caught_and_the_sound_one_is_verified(
    tmp_path: Path, engine: str, network: str, setting: str, cases: int
) -> None:
    found = list(mutations.results(cases, 0, tmp_path, engine=engine, network=network, setting=setting))
    assert [each.case() for each in found if not each.held] == []
    assert sum(each.mutation is None for each in found) == 2
    caught = sum(each.outcome in ("mismatch", "inconclusive") for each in found)
    assert caught == (cases or len(found) - 2) > 0


@pytest.mark.parametrize(
    ("tried", "outcome", "named", "held"),
    [
        (BROKEN, "mismatch", ("d1/bias", "d2/kernel"), True),
        (BROKEN, "inconclusive", ("d2/kernel",), True),
        (BROKEN, "equivalent", (), True),
        (BROKEN, "mismatch", ("d1/bias",), False),
        (BROKEN, "verified", (), False),
        (BROKEN, "failed: the process ended", ("d2/kernel",), False),
        (None, "verified", (), True),
        (None, "inconclusive", ("d1/bias",), False),
    ],
)
def test_a_try_is_held_where_the_verdict_is_right_and_names_the_variable(
    tried: Mutation | None, outcome: str, named: tuple[str, ...], held: bool
) -> None:
    assert Result("jax mlp sgd", tried, outcome, "d2/kernel", named, (*named, "d2/kernel")).held is held


def test_there_are_more_than_sixty_ways_and_each_has_a_name_of_its_own_and_is_tried() -> None:
    names = [each.name for each in MUTATIONS]
    assert len(names) == len(set(names)) > 60
    tried = networks.scenes()
    for each in MUTATIONS:
        scenes = [(n, e, s) for n in each.networks for e in ENGINES for s in each.settings]
        assert any(scene in tried for scene in scenes), each.name
        assert {*each.networks} <= {*networks.NETWORKS}
        assert {*each.settings} <= {*networks.SETTINGS}
