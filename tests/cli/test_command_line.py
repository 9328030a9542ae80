"""The command line before Hydra reads it, and what fits the schema's types."""

from __future__ import annotations

from typing import Any

import pytest

from runner.cli.command_line import arranged
from runner.config.kinds import misfit
from runner.config.schema import LayoutConfig, MeshConfig, TrackingConfig, TrainerConfig
from runner.config.schema_task import LanguageModelOptions
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("dataset=digits -m trainer.seed=1,2", "-m dataset=digits trainer.seed=1,2"),
        ("trainer.epochs=1 --cfg job dataset=digits", "--cfg job trainer.epochs=1 dataset=digits"),
        ("trainer.epochs=1 --cfg=job", "--cfg job trainer.epochs=1"),
        ("dataset=digits --config-dir tests trainer.epochs=1", "--config-dir tests dataset=digits trainer.epochs=1"),
        ("-m trainer.seed=1,2 -m", "-m -m trainer.seed=1,2"),
        ("-m -- trainer.seed=1,2", "-m trainer.seed=1,2"),
        ("mesh.axes.model=2", "++mesh.axes.model=2"),
        ("mesh.axes={batch:2}", "~mesh.axes +mesh.axes={batch:2}"),
        ("tracking.tags={a:b}", "~tracking.tags +tracking.tags={a:b}"),
        ("resume=/some/folder", "resume=/some/folder"),
        ("dataset=sub/mine", "dataset=sub/mine"),
    ],
)
def test_flags_and_overrides_stand_in_any_order(typed: str, expected: str) -> None:
    assert arranged(typed.split()) == expected.split()
    assert arranged(arranged(typed.split())) == expected.split(), "and once more changes nothing"


@pytest.mark.parametrize("given", ["=5", "~", "==", "", " ", "+", "++", "~~", "-", "@mesh=single", "x" * 5000])
def test_what_names_no_key_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r": .*write|unknown flag") as found:
        arranged([given])
    assert len(str(found.value)) < 600


@pytest.mark.parametrize("value", ["null", "[a]", "{a:1}", "''", "true"])
@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.sweep.dir"])
def test_where_to_write_is_a_path(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}=.*: the path of a folder; set {key}="):
        arranged([f"{key}={value}"])


@pytest.mark.parametrize(
    "option",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "../model/mlp",
        "sub/../../x",
        "C:\\x",
        "single,../x",
        "'../x'",
        "choice(../x,a)",
    ],
)
@pytest.mark.parametrize("group", ["mesh", "+mesh@a.b", "hydra/launcher", "experiment"])
def test_an_options_name_does_not_leave_its_folder(group: str, option: str) -> None:
    with pytest.raises(ConfigError, match="a path that leaves it"):
        arranged([f"{group}={option}"])


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (MeshConfig, {"axes": {"batch": [2]}}, "k.axes.batch=[2]: a value of type int"),
        (MeshConfig, {"axes": {"batch": None}}, "k.axes.batch=null:"),
        (
            LayoutConfig,
            {"rules": [{}, {"optional": "maybe"}]},
            "k.rules[1].optional=maybe: a value of type bool",
        ),
        (
            LayoutConfig,
            {"rules": [{"spec": [None, ["a"]]}]},
            "k.rules[0].spec[1]=['a']: a value of type str",
        ),
        (LayoutConfig, {"rules": [3]}, "k.rules[0]=3: keys under it: match, spec"),
        (LayoutConfig, {"inputs": {"image": "batch"}}, "k.inputs.image=batch: a value of type list"),
        (TrackingConfig, {"tags": {"a": {"b": "c"}}}, "k.tags.a={'b': 'c'}: a value of type str"),
        (
            LanguageModelOptions,
            {"sample": False},
            "k.sample=False: keys under it: prompt, tokens, temperature; set k.sample=null",
        ),
        (TrainerConfig, {"checkpoint": 3}, "k.checkpoint=3: keys under it: enabled"),
        (TrainerConfig, {"epochs": "many"}, "k.epochs=many: a value of type int"),
        (TrainerConfig, {"epochs": 1.5}, "k.epochs=1.5:"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(kind: Any, value: object, shown: str) -> None:
    assert str(misfit(kind, value, "k")).startswith(shown)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TrainerConfig, {"epochs": "5", "verify_first": "yes", "steps_per_epoch": None, "nosuch": [1]}),
        (LayoutConfig, {"rules": [{"match": 3, "spec": [None, "batch"], "optional": 1}], "inputs": {"image": [None]}}),
        (MeshConfig, {"axes": {"batch": "2"}, "cpu_devices": 8}),
        (TrackingConfig, {"tags": {"a": 3}}),
    ],
)
def test_what_omegaconf_converts_is_let_through(kind: Any, value: object) -> None:
    assert misfit(kind, value, "k") is None
