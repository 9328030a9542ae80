"""The mutation campaign, shortened; and that its judgement can fail."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.campaign import mutations, networks
from tests.campaign.mutations import Options, Result, Scene, Try, config_of
from tests.campaign.mutations_hooks import Patches
from tests.campaign.mutations_table import ALL, ENGINES, MUTATIONS, SCALES
from tests.campaign.mutations_worker import Job

BROKEN = Try("update lost", Job(5, mutation="update lost", path="d2/kernel"), "d2/kernel")
SOUND = Try("nothing broken", Job(1), sound=True)


@pytest.mark.nightly
@pytest.mark.parametrize(("engine", "network"), [("jax", "tokens"), ("jax", "mixed"), ("keras_dtensor", "mixed")])
def test_broken_engines_are_caught_and_the_sound_one_is_verified(tmp_path: Path, engine: str, network: str) -> None:
    options = Options(engine=engine, network=network, setting="sgd")
    found = list(mutations.results(6, 0, tmp_path, options))
    assert [each.case() for each in found if not each.held] == []
    assert sum(each.tried.sound for each in found) >= 2
    assert sum(each.outcome in ("mismatch", "inconclusive") for each in found) == 6


# What a scene breaks in addition to gradients, in words that are found in the names of its mutations.
NEW_KINDS = {
    ("mlp", "jax", "lamb"): "Lamb",
    ("mlp", "jax", "muon"): "Muon",
    ("mlp", "jax", "groups"): "group|frozen|norm",
    ("mlp", "keras_dtensor", "groups"): "group|frozen|norm",
    ("segments", "jax", "sgd"): "ignored",
    ("segments", "keras_dtensor", "adamw"): "ignored",
    ("outputs", "jax", "several"): "loss weight|output|ignored",
    ("outputs", "keras_dtensor", "several"): "loss weight|output|ignored",
    ("tokens", "jax", "resumed"): "resume",
    ("mlp", "keras_dtensor", "resumed"): "resume",
}


@pytest.mark.nightly
@pytest.mark.parametrize("scene", NEW_KINDS, ids="-".join)
def test_optimizers_groups_ignored_labels_and_resumes_that_are_broken_are_caught(
    tmp_path: Path, scene: tuple[str, str, str]
) -> None:
    network, engine, setting = scene
    options = Options(engine=engine, network=network, setting=setting, mutation=NEW_KINDS[scene])
    found = list(mutations.results(0, 0, tmp_path, options))
    assert [each.case() for each in found if not each.held] == []
    assert sum(each.tried.sound for each in found) == 2
    assert sum(each.outcome == "mismatch" for each in found) == len(found) - 2 > 0


@pytest.mark.parametrize(
    ("tried", "outcome", "named", "held"),
    [
        (BROKEN, "mismatch", ("d1/bias", "d2/kernel"), True),
        (BROKEN, "inconclusive", ("d2/kernel",), True),
        (BROKEN, "equivalent", (), True),
        (BROKEN, "mismatch", ("d1/bias",), False),
        (BROKEN, "verified", (), False),
        (BROKEN, "failed: the process ended", ("d2/kernel",), False),
        (BROKEN, "refused: a rule", (), False),
        (SOUND, "verified", (), True),
        (SOUND, "inconclusive", ("d1/bias",), False),
        (SOUND, "mismatch", ("d1/bias",), False),
    ],
)
def test_a_try_is_held_where_the_verdict_is_right_and_names_the_variable(
    tried: Try, outcome: str, named: tuple[str, ...], held: bool
) -> None:
    assert Result("jax mlp sgd", tried, outcome, named, (*named, "d2/kernel")).held is held


def test_what_slips_through_is_in_the_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Result("", SOUND, "verified"), Result("", BROKEN, "verified"), Result("", BROKEN, "equivalent")]
    monkeypatch.setattr(mutations, "_results", found)
    out = io.StringIO()
    mutations.report(out)
    assert "1 ways to break an engine, tried 1 times: 0 caught, 1 slipped through; 1 changed nothing" in out.getvalue()
    assert "sound engines: 1 of 1 verified" in out.getvalue()


def test_there_are_sixty_ways_and_each_has_a_name_of_its_own_and_is_tried() -> None:
    names = [each.name for each in (*MUTATIONS, *SCALES)]
    assert len(names) == len(set(names)) >= 60
    tried = networks.scenes()
    for each in MUTATIONS:
        scenes = [(n, e, s) for n in each.networks for e in each.engines for s in each.settings]
        assert any(scene in tried for scene in scenes), each.name
        assert {*each.networks} <= {*networks.NETWORKS} == {*ALL, "segments"}
        assert {*each.engines} <= {*ENGINES}
        assert {*each.settings} <= {*networks.SETTINGS}


@pytest.mark.parametrize(
    "kind",
    [
        "norms? of one shard",
        "group's weight decay on a bias",
        "ignored (index|label) counted",
        "loss weight dropped",
        "schedule a step off after a resume",
    ],
)
def test_each_kind_of_break_of_a_training_step_is_tried_by_the_test_above(kind: str) -> None:
    tried = []
    for (network, engine, setting), words in NEW_KINDS.items():
        for each in MUTATIONS:
            fits = network in each.networks and engine in each.engines and setting in each.settings
            if fits and re.search(words, each.name) and re.search(kind, each.name):
                tried.append(each.name)
    assert tried


@pytest.mark.nightly
@pytest.mark.parametrize("scene", networks.scenes(), ids="-".join)
def test_every_scene_is_a_config_that_is_accepted(scene: tuple[str, str, str]) -> None:
    config = config_of(*scene)
    assert config.engine.name == scene[1]
    assert config.verify.steps == 4


def test_a_variable_is_found_for_each_mutation_that_is_aimed_at_one() -> None:
    """By the names that the networks give, which both engines share."""
    given = {
        "mlp": ["d1/kernel", "d1/bias", "d2/kernel", "d2/bias"],
        "vit": ["block_0/attention/query/kernel", "block_0/mlp/up/kernel", "block_0/mlp/up/bias", "head/kernel"],
        "tokens": ["norm1/gamma", "d1/kernel", "d2/kernel", "square/kernel", "head/kernel"],
    }
    for network, paths in given.items():
        for each in MUTATIONS:
            if network in each.networks and each.path:
                assert any(re.fullmatch(each.path, path) for path in paths), (network, each.name)


def test_patches_are_undone_in_the_order_that_they_were_not_made() -> None:
    class Base:
        value = 1

    class Derived(Base):
        pass

    patches = Patches()
    patches.put(Derived, "value", 2)
    patches.wrap(Derived, "value", lambda value: value + 1)
    assert Derived.value == 3
    patches.undo()
    assert (Derived.value, "value" in vars(Derived)) == (1, False)


def test_a_zero_gradient_is_broken_by_what_is_added_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gradients: dict[str, Any] = {"conv3/kernel": np.full(3, -2.0), "conv3/bias": np.zeros(3)}
    scene = Scene("convnet", "jax", "adamw", tmp_path)
    monkeypatch.setattr(Scene, "gradients", lambda _: gradients)
    tried = {each.name: each.job for each in scene._tries(Options(mutation="gradient"))}
    assert tried["gradient of zero that is not"].path == "conv3/bias"
    assert tried["gradient of zero that is not"].chosen == (1.0, 0.2, 1.0)
    assert tried["gradient times -1"].path == "conv3/kernel"
