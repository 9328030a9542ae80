"""Parameter groups: which settings a variable gets. `tests/parity` and `tests/verify` compare training by them."""

import re

import pytest

from runner.cli.notebook import compose
from runner.config.schema import GroupConfig, OptimizerConfig
from runner.engine.optim import groups
from runner.engine.optim.groups import Settings
from runner.errors import ConfigError

PATHS = ["embed/table", "block/norm/gamma", "block/query/kernel", "block/query/bias", "head/kernel"]


def settings(*entries: GroupConfig) -> dict[str, Settings]:
    return groups.settings(OptimizerConfig("adamw", groups=list(entries)), PATHS)


def test_without_groups_all_variables_are_trained_alike() -> None:
    assert set(settings().values()) == {Settings(1.0, True)}


def test_the_preset_takes_biases_and_norms() -> None:
    found = settings(GroupConfig("biases_and_norms", decay=False))
    assert [path for path, own in found.items() if not own.decays] == ["block/norm/gamma", "block/query/bias"]


@pytest.mark.parametrize("path", ["bias", "a/beta", "layer_norm/scale", "attention/query_bias", "bn/gamma"])
def test_names_of_the_preset(path: str) -> None:
    assert re.fullmatch(groups.PRESETS["biases_and_norms"], path)


@pytest.mark.parametrize("path", ["bias/kernel", "scale/kernel", "a/biases", "rescale/w"])
def test_names_that_are_not_of_the_preset(path: str) -> None:
    assert not re.fullmatch(groups.PRESETS["biases_and_norms"], path)


def test_of_each_setting_the_first_group_that_has_it_counts() -> None:
    found = settings(
        GroupConfig("block/query/.*", rate=0.1), GroupConfig("block/.*", rate=0.5), GroupConfig(".*bias", decay=False)
    )
    assert found["block/query/bias"] == Settings(0.1, False)
    assert found["block/norm/gamma"] == Settings(0.5, True)
    assert found["embed/table"] == Settings()


def test_a_group_that_matches_nothing_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.groups\[0\].match=blok/.\*: matches no trainable variable"):
        settings(GroupConfig("blok/.*", rate=0.1))


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ("{match: '.*bias', decay: false}", ["optimizer.groups[0].decay=false", "no weight decay", "optimizer=adamw"]),
        ("{match: '.*'}", ["optimizer.groups[0]", "rate or decay"]),
        ("{rate: 0.1}", ["optimizer.groups[0].match", "regular expression"]),
        ("{match: '(', rate: 0.1}", ["optimizer.groups[0].match=(", "regular expression"]),
        ("{match: '.*', rate: 0}", ["optimizer.groups[0].rate=0.0", "above 0"]),
        ("{match: '.*', lr: 1}", ["optimizer.groups[0].lr", "decay"]),
    ],
)
def test_invalid_groups_are_rejected_in_one_line(entry: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose("engine=jax", "optimizer=adam", f"optimizer.groups=[{entry}]")
    for part in parts:
        assert part in str(error.value)
