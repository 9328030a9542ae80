"""Names that look like numbers stay the names that were typed."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from runner.checkpoint.arguments import value_of
from runner.cli.command_line import arranged
from runner.cli.sweep.settings import arguments_of
from runner.config.compose import compose
from runner.config.convert import typed_config
from runner.config.texts import kept
from runner.errors import ConfigError
from runner.plan.checks.run import convert

LIKE_NUMBERS = ("1.10", "83e2010", "12e4567", "1_0", "true", "False", "0x10", "1:30", "nan", "-5", "1e5", "007", "1.")


@pytest.mark.parametrize("text", LIKE_NUMBERS)
def test_a_key_of_text_has_the_text_that_was_typed(text: str) -> None:
    keys = ("tracking.run_name", "tracking.experiment", "tracking.tags.note", "sweep.name", "name")
    config = typed_config(compose(arranged([f"resume={text}", *(f"{key}={text}" for key in keys)])))
    found = (config.tracking.run_name, config.tracking.experiment, config.tracking.tags["note"], config.sweep.name)
    assert (*found, config.name, config.resume) == (text,) * 6
    assert value_of(arranged([f"resume={text}"]), "resume") == text
    # Hydra reads the command line itself, without `compose`.
    read = OverridesParser.create().parse_override(arranged([f"name={text}"])[0]).value()
    assert str(read) == text


def test_a_sweep_that_a_preset_defines_keeps_texts() -> None:
    sweeper = {"params": {"tracking.run_name": "1.10,2.20", "trainer.seed": "1,2"}}
    config = OmegaConf.create({"hydra": {"sweeper": sweeper, "overrides": {"task": []}}})
    assert arguments_of(config) == ["tracking.run_name='1.10','2.20'", "trainer.seed=1,2"]


def test_what_is_composed_without_a_command_line_keeps_its_text() -> None:
    assert compose(["resume=auto", "name=1.10"]).name == "1.10"


def test_a_run_may_be_called_null() -> None:
    assert value_of(arranged(["resume='null'"]), "resume") == "null"
    assert value_of(arranged(["resume=null"]), "resume") == ""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("name=null", "name=null"),
        ("name='null'", "name='null'"),
        ("tracking.run_name=1.10,2.20,a", "tracking.run_name='1.10','2.20',a"),
        ("tracking.run_name=choice(1.10, a, 2.20)", "tracking.run_name=choice('1.10', a, '2.20')"),
        ("tracking.run_name=tag(x, shuffle(1.10,a))", "tracking.run_name=tag(x, shuffle('1.10',a))"),
        ("trainer.seed=choice(1,2)", "trainer.seed=choice(1,2)"),
        ("task.target=2024", "task.target='2024'"),
        ("hydra.run.dir=true", "hydra.run.dir=true"),
        ("tracking.run_name=range(1,4)", "tracking.run_name=range(1,4)"),
        ("dataset.features=[1.10, a]", "dataset.features=[1.10, a]"),
        ("dataset.standardize=true", "dataset.standardize=true"),
        ("task.classes=10", "task.classes=10"),
        ("task.sample.prompt=1.50", "task.sample.prompt='1.50'"),
        ("hydra.run.dir=2025.10", "hydra.run.dir='2025.10'"),
        ("model.width=1.5", "model.width=1.5"),
        ("trainer.epochs=1_0", "trainer.epochs=1_0"),
        ("optimizer.learning_rate=1e-3", "optimizer.learning_rate=1e-3"),
        ("name=${trainer.seed}", "name=${trainer.seed}"),
    ],
)
def test_texts_alone_are_quoted_and_once_only(typed: str, expected: str) -> None:
    assert kept(typed) == expected
    assert kept(expected) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tracking: {run_name: 1.10}", "tracking.run_name=1.1: must be a string, but YAML reads it"),
        ("tracking: {run_name: 0x10}", "tracking.run_name=16: must be a string"),
        ("tracking: {tags: {note: true}}", "tracking.tags.note=true: must be a string"),
        ("task: {classes: [1.10, b]}", "task.classes=[1.1,b]: names must be strings or integers"),
        ("dataset: {features: [1.10, b]}", "dataset.features[0]=1.1: must be a string"),
        ("name: 83e2010", "name=inf: must be a string"),
        ("tracking: {tags: {1.10: x}}", "tracking.tags.1.1=x: must be a string"),
    ],
)
def test_a_text_that_yaml_reads_as_a_number_is_rejected(text: str, said: str) -> None:
    made = OmegaConf.merge(compose(["resume=auto"]), {"name": "a"})
    OmegaConf.set_struct(made, False)
    with pytest.raises(ConfigError) as error:
        convert(OmegaConf.merge(made, OmegaConf.create(text)))
    assert said in str(error.value)
    assert str(error.value).endswith("in quotes")


def test_an_interpolation_of_a_number_is_a_text() -> None:
    config = convert(compose(["tracking.run_name=${optimizer.learning_rate}", "optimizer.learning_rate=0.25"]))
    assert config.tracking.run_name == "0.25"
    tagged = compose(arranged(["resume=auto", "name=${trainer.seed}", "tracking.tags.seed=${trainer.seed}"]))
    config = typed_config(tagged)
    assert (config.name, dict(config.tracking.tags)) == ("1337", {"seed": "1337"})
