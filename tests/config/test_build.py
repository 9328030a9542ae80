"""Conversion of plain values to the typed dataclasses of the schema."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from runner.config.build import build
from runner.config.schema import CheckpointConfig, LayoutConfig, MeshConfig, RuleConfig, TrackingConfig, TrainerConfig
from runner.config.schema_augment import Resize
from runner.config.schema_task import LanguageModelOptions
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (MeshConfig, {"axes": {"batch": [2]}}, "k.axes.batch=[2]: must be an integer; set k.axes.batch=8"),
        (MeshConfig, {"axes": {"batch": None}}, "k.axes.batch=null: must be an integer"),
        (MeshConfig, {"axes": 8}, "k.axes=8: must be a mapping from names to integers; set k.axes={batch:8}"),
        (LayoutConfig, {"rules": [{}, {"optional": "maybe"}]}, "k.rules[1].optional=maybe: must be true or false"),
        (LayoutConfig, {"rules": [{"spec": [None, ["a"]]}]}, "k.rules[0].spec[1]=[a]: must be a string"),
        (LayoutConfig, {"rules": [3]}, "k.rules[0]=3: must be a mapping with the keys match, spec"),
        (LayoutConfig, {"rules": [{"mach": "a"}]}, "k.rules[0].mach: unknown key (k.rules[0] has match, spec"),
        (LayoutConfig, {"inputs": {"image": "batch"}}, "k.inputs.image=batch: must be a list of strings or null"),
        (TrackingConfig, {"tags": {"a": {"b": "c"}}}, "k.tags.a={b:c}: must be a string"),
        (LanguageModelOptions, {"sample": False}, "k.sample=false: must be a mapping with the keys prompt, tokens"),
        (TrainerConfig, {"checkpoint": 3}, "k.checkpoint=3: must be a mapping with the keys enabled"),
        (TrainerConfig, {"epochs": "many"}, "k.epochs=many: must be an integer; set k.epochs=3"),
        (TrainerConfig, {"epochs": 1.5}, "k.epochs=1.5: must be an integer"),
        (TrainerConfig, {"epochs": True}, "k.epochs=true: must be an integer"),
        (CheckpointConfig, {"every_minutes": "low"}, "k.every_minutes=low: must be a number"),
        (TrainerConfig, {"epoch": 3}, "k.epoch: unknown key (k has epochs, steps, tokens, steps_per_epoch"),
        (Resize, {}, "k.size is required; write size: [224,224]"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_its_place(kind: Any, value: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(kind, value, "k")
    assert str(error.value).startswith(message)
    assert "; " in str(error.value)


def test_values_are_converted_as_omegaconf_does() -> None:
    trainer = build(TrainerConfig, {"epochs": "5", "verify_first": "yes", "steps_per_epoch": None}, "k")
    assert trainer == TrainerConfig(epochs=5, verify_first=True)
    rule = {"match": "3", "spec": [None, "batch"], "optional": 1}
    layout = build(LayoutConfig, {"rules": [rule], "inputs": {"image": [None]}}, "k")
    assert layout == LayoutConfig(rules=[RuleConfig("3", [None, "batch"], optional=True)], inputs={"image": [None]})
    assert build(MeshConfig, {"axes": {"batch": "2"}}, "k").axes == {"batch": 2}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("10aeyYs.-_x", max_size=4)


KEYS = [(TrainerConfig, "epochs"), (CheckpointConfig, "every_minutes"), (TrainerConfig, "verify_first")]


@given(st.sampled_from(KEYS), SCALARS)
def test_every_scalar_is_converted_or_rejected_as_by_omegaconf(key: tuple[Any, str], value: Any) -> None:
    kind, name = key
    try:
        structured = OmegaConf.structured(kind)
        OmegaConf.set_readonly(structured, False)
        structured[name] = value
        expected = structured[name]
    except ValidationError:
        with pytest.raises(ConfigError):
            build(kind, {name: value}, "k")
    else:
        typed = getattr(build(kind, {name: value}, "k"), name)
        assert (type(typed), typed) == (type(expected), expected)
