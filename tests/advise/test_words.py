"""The advised command composes exactly the advised candidate, whatever presets and own options set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import DictConfig

from runner.advise import words
from runner.checks import composed as _resolvers  # noqa: F401 - registers what the options refer to
from runner.config import free_keys
from runner.config.compose import compose
from tests.advise.test_candidates import START


def folder(root: Path) -> Path:
    """Returns a folder of a user's options: a preset that sets what candidates set, and a model that does."""
    for group in ("experiment", "model"):
        (root / group).mkdir(parents=True, exist_ok=True)
    (root / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults: [{override /mesh: batch4_model2}, {override /layout: megatron}, _self_]\n"
        "trainer: {accumulate_steps: 4}\n"
        "mesh: {axes: {model: 2, batch: 4}}\n"
    )
    (root / "model" / "mine.yaml").write_text("defaults: [gpt, _self_]\nremat: full\n")
    return root


def composer(root: Path) -> words.Compose:
    def of(overrides: list[str]) -> DictConfig:
        return compose([f"hydra.searchpath=['file://{root.as_posix()}']", *free_keys.arranged(overrides)])

    return of  # type: ignore[return-value] # a list is all that is passed


def test_options_that_the_config_has_anyway_are_left_out(tmp_path: Path) -> None:
    assert words.short(START, ["engine=jax", "model=gpt"], composer(tmp_path)) == [
        "mesh.axes={batch:8}",
        "layout=fsdp",
    ]


@pytest.mark.parametrize("others", [["experiment=mine", "model=gpt"], ["model=mine"]])
def test_the_command_composes_the_candidate_where_others_set_its_keys(tmp_path: Path, others: list[str]) -> None:
    others = ["engine=jax", *others]
    compose_mine = composer(folder(tmp_path))
    candidate = replace(START, layout="replicated")
    composed = compose_mine([*others, *words.short(candidate, others, compose_mine)])
    assert list(composed.mesh.axes.items()) == [("batch", 8)]
    assert composed.layout == compose_mine(["layout=replicated"]).layout
    assert composed.model.remat == "none"
    assert composed.trainer.accumulate_steps == 1


def test_the_order_of_axes_which_numbers_the_devices_is_the_candidates(tmp_path: Path) -> None:
    compose_mine = composer(folder(tmp_path))
    others = ["experiment=mine", "engine=jax", "model=gpt"]
    candidate = replace(START, axes=(("batch", 4), ("model", 2)))
    composed = compose_mine([*others, *words.short(candidate, others, compose_mine)])
    assert list(composed.mesh.axes) == ["batch", "model"]
