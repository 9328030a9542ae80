"""Each example's config is valid; the table says what the steps of an example ended with."""

from pathlib import Path

import pytest

from runner.checks.composed import convert
from runner.config.compose import compose
from tests.keras_examples.__main__ import STEPS, commands, measure, verdict
from tests.keras_examples.spec import Example, Spec, examples

EXAMPLES = [example for example in examples() if not example.spec.needs]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_config_of_each_example_is_valid(example: Example) -> None:
    convert(compose([*example.overrides(), "engine=jax", "layout=auto", "mesh=batch4_model2"]))


def test_each_step_has_a_command() -> None:
    assert list(commands(EXAMPLES[0], "jax", Path("folder"))) == STEPS


def test_the_table_says_the_first_step_that_failed_and_what_is_lost() -> None:
    ended = dict.fromkeys(STEPS, "ok")
    example = Example("vision", "one", Spec("One"))
    assert verdict(example, ended) == "as is"
    assert verdict(example, ended | {"train": "exit code 2: x"}) == "no: train: exit code 2: x"
    assert verdict(example, {}) == "no: plan: not run"
    lossy = Example("vision", "one", Spec("One", lost=["a metric"], workaround_lines=3))
    assert verdict(lossy, ended) == "3 lines, without a metric"
    assert verdict(Example("vision", "one", Spec("One", needs="task=step")), {}) == "not yet: needs task=step"


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["mnist_convnet", "wide_deep_cross"])
def test_an_example_passes_every_step(name: str, tmp_path: Path) -> None:
    example = next(one for one in EXAMPLES if one.name == name)
    assert measure(example, "jax", tmp_path, timeout=900) == dict.fromkeys(STEPS, "ok")
