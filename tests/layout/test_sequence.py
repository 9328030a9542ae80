"""Tokens split over an axis of the mesh, alone and with the other layouts; what can't be is refused."""

from dataclasses import replace

import pytest

from runner import layout
from runner.data.base import ArraySpec
from runner.errors import ConfigError
from runner.layout.axes import data_axes
from runner.layout.inputs import input_specs
from runner.layout.rules import model_axes
from tests.layout.test_presets import load
from tests.layout.test_transformers import gpt

TEXT = {
    "tokens": ArraySpec((16,), "int32", ("sequence",)),
    "label_weight": ArraySpec((16,), "float32", ("sequence",)),
    "mask": ArraySpec((16, 16), "int32", ("sequence", "sequence")),
    "image": ArraySpec((8, 8, 1), "uint8", ("height", "width", "channel")),
    "length": ArraySpec((), "int32"),
    "row": ArraySpec((16,), "int32"),
}
AXES = {"batch": 2, "sequence": 2, "model": 2}


def test_every_array_with_a_sequence_is_split_on_it_and_no_other() -> None:
    found = input_specs(load("sequence"), TEXT, AXES)
    assert found == {
        "tokens": ("batch", "sequence"),
        "label_weight": ("batch", "sequence"),
        "mask": ("batch", "sequence", None),
        "image": ("batch", None, None, None),
        "length": ("batch",),
        "row": ("batch", None),
        "weight": ("batch",),
    }
    config = replace(load("sequence"), inputs={"tokens": ["batch", None]})
    assert input_specs(config, TEXT, AXES)["tokens"] == ("batch", None)


@pytest.mark.parametrize("preset", ["replicated", "fsdp", "megatron", "fsdp_megatron", "auto"])
def test_it_goes_with_every_layout_and_splits_no_weight(preset: str) -> None:
    config = load(preset)
    alone = layout.resolve(config, gpt(), {"batch": 2, "model": 2})
    config = replace(config, sequence="sequence")
    layout.check(config, AXES)
    layout.check_inputs(config, TEXT, 8, AXES)
    both = layout.resolve(config, gpt(), AXES)
    assert {path: each.spec for path, each in both.items()} == {path: each.spec for path, each in alone.items()}
    assert data_axes(config, AXES) == {"batch", "sequence"}
    assert model_axes(config, AXES) == {"model": 2}


_EACH = "as 'mesh.axes={batch:2,sequence:2,model:2}'"


@pytest.mark.parametrize(
    ("preset", "axis", "axes", "parts"),
    [
        ("sequence", "sequence", {"batch": 4, "model": 2}, ("no axis 'sequence'", "mesh=batch2_sequence4")),
        ("replicated", "batch", {"batch": 4, "model": 2}, ("already shards the batch dim", "name another axis")),
        ("megatron", "model", {"batch": 4, "model": 2}, ("can't shard tokens", _EACH)),
    ],
)
def test_an_axis_that_is_not_there_or_splits_something_else_is_refused(
    preset: str, axis: str, axes: dict[str, int], parts: tuple[str, ...]
) -> None:
    config = replace(load(preset), sequence=axis)
    with pytest.raises(ConfigError) as caught:
        layout.check(config, axes)
    assert all(part in str(caught.value) for part in (f"layout.sequence={axis}", *parts)), str(caught.value)


def test_a_length_that_the_axis_does_not_divide_and_data_without_sequences_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"of size 3 does not divide the 16 tokens of tokens; .*to a multiple of 3"):
        layout.check_inputs(load("sequence"), TEXT, 8, {"batch": 2, "sequence": 3})
    with pytest.raises(ConfigError, match="a dim named sequence, as none of image has"):
        layout.check_inputs(load("sequence"), {"image": TEXT["image"]}, 8, AXES)


def test_tokens_that_the_inputs_split_over_the_axis_of_heads_are_refused() -> None:
    arrays = {"tokens": TEXT["tokens"], "row": TEXT["row"]}
    # The dims of `row` have no names, so that nothing says whether they are tokens.
    config = replace(load("megatron"), inputs={"tokens": ["batch", None], "row": ["batch", "model"]})
    layout.check_inputs(config, arrays, 8, AXES)
    config.inputs["tokens"] = ["batch", "model"]
    with pytest.raises(ConfigError) as caught:
        layout.check_inputs(config, arrays, 8, AXES)
    assert str(caught.value) == (
        "layout.inputs.tokens=[batch,model]: axis 'model' already shards heads by layout.rules[0].transformer, and "
        "can't shard tokens too; choose a mesh with an axis for each, such as 'mesh.axes={batch:2,sequence:2,model:2}'"
    )
    config.inputs["tokens"] = ["batch", "sequence"]
    layout.check_inputs(config, arrays, 8, AXES)
