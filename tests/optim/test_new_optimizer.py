"""An optimizer is one place: an entry of the registry and a YAML file. All else follows from them."""

from pathlib import Path

import numpy as np
import pytest

from runner.arrays import Arrays, Tensor
from runner.cli.notebook import compose
from runner.config.schema import OptimizerConfig
from runner.engine.optim import rules
from runner.engine.optim.rules import OptimizerEntry, Rule, Slots
from runner.errors import ConfigError


def _make_rule(config: OptimizerConfig, _: Arrays) -> Rule:
    """Heavy-ball momentum that is not multiplied by the learning rate, as PyTorch's SGD has it."""

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> tuple[Tensor, Slots]:
        del step
        trace = slots["trace"] * config.momentum + gradient
        return weight - trace * rate, {"trace": trace}

    return Rule(("trace",), update)


ENTRY = OptimizerEntry(("momentum",), _make_rule, keras_class="SGD")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The override that names a folder of options with the optimizer's, which is in the registry."""
    monkeypatch.setitem(rules.OPTIMIZERS, "heavy_ball", ENTRY)  # type: ignore[arg-type]
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer/heavy_ball.yaml").write_text("name: heavy_ball\nlearning_rate: 0.1\nmomentum: 0.5\n")
    return f"hydra.searchpath=[file://{tmp_path}]"


def test_its_yaml_file_is_an_option_and_its_rule_computes_in_numpy(folder: str) -> None:
    config = compose("optimizer=heavy_ball", folder).optimizer
    rule = rules.make_rule(config, np)
    weight, slots = np.float32([1.0, 2.0]), {"trace": np.float32([0.0, 0.0])}
    for step in (1, 2):
        weight, slots = rule.update(np.float32([1.0, -1.0]), weight, slots, config.learning_rate, step)
    assert slots["trace"].tolist() == [1.5, -1.5]
    assert weight.tolist() == pytest.approx([1.0 - 0.1 - 0.15, 2.0 + 0.1 + 0.15])


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["optimizer=heavy_ball", "optimizer.momentum=null"], "optimizer.momentum"),
        (["optimizer=heavy_ball", "+optimizer.rho=0.9"], "optimizer.rho=0.9"),
        (["optimizer.name=heavy_bal"], "optimizer.name=heavy_bal"),
    ],
)
def test_checks_of_its_keys_and_name_follow_from_its_entry(folder: str, overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match="heavy_ball") as error:
        compose(*overrides, folder)
    assert str(error.value).startswith(key)
