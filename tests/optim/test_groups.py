"""Parameter groups: which settings a variable gets, and that engines train by them as stock Keras does."""

from __future__ import annotations

from typing import Any

import pytest

from runner.cli.notebook import compose
from runner.config.schema import GroupConfig, OptimizerConfig
from runner.engine.optim import groups
from runner.engine.optim.groups import Settings
from runner.errors import ConfigError
from tests.optim.keras_runs import GROUPED, work
from tests.optim.test_keras_classes import off

PATHS = ["embed/table", "block/norm/gamma", "block/query/kernel", "block/query/bias", "head/kernel"]


def settings(*entries: GroupConfig) -> dict[str, Settings]:
    return groups.settings(OptimizerConfig("adamw", groups=list(entries)), PATHS)


def test_without_groups_all_variables_are_trained_alike() -> None:
    assert set(settings().values()) == {Settings(1.0, True, 0)}


def test_the_preset_takes_biases_and_norms() -> None:
    found = settings(GroupConfig("biases_and_norms", decay=False))
    assert [path for path, own in found.items() if not own.decays] == ["block/norm/gamma", "block/query/bias"]


@pytest.mark.parametrize("path", ["bias", "a/beta", "layer_norm/scale", "attention/query_bias", "bn/gamma"])
def test_names_of_the_preset(path: str) -> None:
    assert groups.pattern_of(GroupConfig("biases_and_norms")).fullmatch(path)


@pytest.mark.parametrize("path", ["bias/kernel", "scale/kernel", "a/biases", "rescale/w"])
def test_names_that_are_not_of_the_preset(path: str) -> None:
    assert not groups.pattern_of(GroupConfig("biases_and_norms")).fullmatch(path)


def test_of_each_setting_the_first_group_that_has_it_counts() -> None:
    found = settings(
        GroupConfig("block/query/.*", rate=0.1),
        GroupConfig("block/.*", rate=0.5, freeze_steps=7),
        GroupConfig(".*bias", decay=False, freeze_steps=9),
    )
    assert found["block/query/bias"] == Settings(0.1, False, 7)
    assert found["block/norm/gamma"] == Settings(0.5, True, 7)
    assert found["embed/table"] == Settings()


def test_a_group_that_matches_nothing_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.groups\[0\].match=blok/.\*: matches no trainable variable"):
        settings(GroupConfig("blok/.*", rate=0.1))


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ("{match: '.*bias', decay: false}", ["optimizer.groups[0].decay=false", "no weight decay", "optimizer=adamw"]),
        ("{match: '.*'}", ["optimizer.groups[0]", "rate, decay or freeze_steps"]),
        ("{rate: 0.1}", ["optimizer.groups[0].match", "regular expression"]),
        ("{match: '(', rate: 0.1}", ["optimizer.groups[0].match=(", "regular expression"]),
        ("{match: '.*', rate: 0}", ["optimizer.groups[0].rate=0.0", "above 0"]),
        ("{match: '.*', freeze_steps: -1}", ["optimizer.groups[0].freeze_steps=-1", "at least 0"]),
        ("{match: '.*', lr: 1}", ["optimizer.groups[0].lr", "freeze_steps"]),
    ],
)
def test_invalid_groups_are_rejected_in_one_line(entry: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose("optimizer=adam", f"optimizer.groups=[{entry}]")
    for part in parts:
        assert part in str(error.value)


def test_a_factor_of_the_rate_counts_for_the_limit_of_weight_decay() -> None:
    entry = "optimizer.groups=[{match: '.*', rate: 10}]"
    with pytest.raises(ConfigError, match="must be below 100, the inverse of the learning rate"):
        compose("optimizer=adamw", "model=convnet", "optimizer.weight_decay=200", entry)


def check(found: Any) -> None:
    assert off(found) == {}
    for result in found.values():
        assert result["resumed"] == []
        # Frozen in the first half of four steps, and trained in the second.
        assert result["moved"]["d2/kernel"] == 0.0
        assert result["moved"]["d2/bias"] == 0.0
        assert result["moved"]["d1/kernel"] > 0.0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("engine", "runs"), [("jax", GROUPED), ("keras_dtensor", GROUPED[:1])])
def test_groups_on_a_mesh_equal_stock_optimizers_of_each_group(engine: str, runs: list[dict[str, Any]]) -> None:
    check(work(runs, steps=4, engine=engine))
