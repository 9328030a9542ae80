"""Names from other tools are answered with what they mean here."""

from __future__ import annotations

import re

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from runner.checks.composed import convert
from runner.cli import suggestions
from runner.host import paths


@pytest.mark.parametrize(
    ("group", "typed", "fix"),
    [
        ("layout", "ddp", "did you mean layout=replicated?"),
        ("layout", "ZeRO3", "did you mean layout=fsdp?"),
        ("layout", "tensor-parallel", "did you mean layout=megatron?"),
        ("layout", "cp", "did you mean layout=sequence?"),
        ("mesh", "batch16", "any size works: mesh.axes.batch=16 (on a CPU with mesh.cpu_devices=16)"),
        ("mesh", "batch512", "any size works: mesh.axes.batch=512 (a CPU has at most 256)"),
        ("mesh", "dp4", "any size works: mesh.axes.batch=4"),
        ("mesh", "dp2_tp4", "any size works: mesh.axes='{batch: 2, model: 4}'"),
        ("mesh", "batch0", None),
        ("mesh", "dp2_batch4", None),
        ("mesh", "nope", None),
        ("layout", "megatrn", None),
    ],
)
def test_an_option_by_another_tools_name(group: str, typed: str, fix: str | None) -> None:
    assert suggestions.option(group, typed) == fix


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("optimizer.lr", "did you mean optimizer.learning_rate?"),
        ("lr", "did you mean optimizer.learning_rate?"),
        ("seed", "did you mean trainer.seed?"),
        ("trainer.gradient_accumulation_steps", "did you mean trainer.accumulate_steps?"),
        ("trainer.seed", None),
        ("nope", None),
    ],
)
def test_a_key_by_another_tools_name(typed: str, fix: str | None) -> None:
    assert suggestions.key(typed) == fix


def test_every_suggested_option_and_key_exists() -> None:
    for group, names in suggestions._OPTIONS.items():
        for option in names.values():
            assert (paths.conf_dir() / group / f"{option}.yaml").is_file(), f"{group}={option}"
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        config = compose(
            "config", overrides=["optimizer=adamw", "dataset=text", "dataset.path=notes", "cluster=local"]
        )
    for key in suggestions._KEYS.values():
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        assert name in node, key


@pytest.mark.parametrize("typed", ["batch2", "dp4", "dp2_tp4", "data8"])
def test_a_suggested_mesh_works_as_typed(typed: str) -> None:
    fix = suggestions.option("mesh", typed)
    assert fix is not None
    override = re.fullmatch(r"any size works: (\S+=.*)", fix)
    assert override is not None
    key, _, value = override[1].replace("'", "").partition("=")
    replaced = [f"~{key}", f"+{key}={value}"] if value.startswith("{") else [f"++{key}={value}"]
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        axes = convert(compose("config", overrides=replaced)).mesh.axes
    assert [size for size in axes.values() if size > 1] == [int(digits) for digits in re.findall(r"\d+", typed)]
