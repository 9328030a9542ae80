"""Every layout preset on the paths and shapes of every model and on many meshes; where each rule was written."""

import math

import pytest
import yaml

from runner import layout
from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig
from runner.config.search_path import options_in
from runner.data.base import ArraySpec
from runner.errors import ConfigError
from runner.host import paths
from tests.layout.tables import MODELS, mlp

CONF = paths.conf_dir()
PRESETS = options_in(CONF / "layout")
IMAGES = {"image": ArraySpec((28, 28, 1), "uint8", ("height", "width", "channel"))}
MESHES: dict[str, dict[str, int]] = {
    "batch8": {"batch": 8},
    "batch4_model2": {"batch": 4, "model": 2},
    "batch2_model4": {"batch": 2, "model": 4},
    "model8": {"batch": 1, "model": 8},
    "batch4_height2": {"batch": 4, "height": 2},
    "batch2_height2_width2": {"batch": 2, "height": 2, "width": 2},
}


def load(name: str) -> LayoutConfig:
    return build(LayoutConfig, search_path.content_of(f"layout/{name}"), "layout")


def axes_named(config: LayoutConfig) -> set[str]:
    rules = (rule.spec or [rule.shard, rule.transformer, rule.store] for rule in config.rules)
    own = ["model" if config.from_model else None]
    specs = [*config.inputs.values(), *rules, [config.sequence], own]
    return {axis for spec in specs for axis in spec if axis is not None}


def specs(preset: str, model: str, mesh: str) -> dict[str, layout.Spec]:
    placed = layout.resolve(load(preset), MODELS[model], MESHES[mesh])
    return {path: placement.spec for path, placement in placed.items()}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("mesh", MESHES)
def test_a_preset_serves_every_model_on_every_mesh_that_has_its_axes_and_is_refused_on_others(
    preset: str, mesh: str
) -> None:
    config, axes = load(preset), MESHES[mesh]
    if not axes_named(config) <= set(axes):
        with pytest.raises(ConfigError, match=r"the mesh has no axis .*choose a mesh that has it, such as mesh="):
            layout.check(config, axes)
        # The other fix that the message names: `+mesh.axes.model=1`.
        layout.check(config, axes | dict.fromkeys(axes_named(config) - set(axes), 1))
        return
    layout.check(config, axes)
    for table in MODELS.values():
        placed = layout.resolve(config, table, axes)
        for placement in placed.values():
            used = [axis for axis in placement.spec if axis is not None]
            shards = math.prod(placement.shard_shape(axes)) * math.prod(axes[axis] for axis in used)
            assert shards == math.prod(placement.shape)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_the_keys_of_the_schema_and_a_command_line_that_names_it(preset: str) -> None:
    text = (CONF / f"layout/{preset}.yaml").read_text()
    assert set(search_path.content_of(f"layout/{preset}")) == {"auto", "rules", "inputs", "sequence", "from_model"}
    command = next(line for line in text.splitlines() if "python -m runner" in line)
    assert f"layout={preset}" in command.split()
    mesh = next(word for word in command.split() if word.startswith("mesh=")).partition("=")[2]
    axes = yaml.safe_load((CONF / f"mesh/{mesh}.yaml").read_text())["axes"]
    assert axes_named(load(preset)) <= set(axes)


MLP = {"d1/kernel": (None, "model"), "d1/bias": ("model",), "d2/kernel": ("model", None)}
DENSE = {"dense1/kernel": (None, "model"), "dense1/bias": ("model",), "dense2/kernel": ("model", None)}


@pytest.mark.parametrize(
    ("preset", "model", "mesh", "split"),
    [
        ("megatron", "mlp", "batch2_model4", MLP),
        # Of a convnet, the dense pair after the convolutions.
        ("megatron", "convnet", "batch4_model2", DENSE),
        # The batch axis is added on another dim that it divides, which 10 classes are not.
        ("fsdp_megatron", "mlp", "batch4_model2", MLP | {"d1/kernel": ("batch", "model")}),
    ],
)
def test_dense_layers_are_sharded_column_then_row(
    preset: str, model: str, mesh: str, split: dict[str, layout.Spec]
) -> None:
    assert {path: spec for path, spec in specs(preset, model, mesh).items() if any(spec)} == split


def test_megatron_alternates_in_a_deep_mlp_and_replicates_classes_that_the_axis_does_not_divide() -> None:
    deep = specs("megatron", "mlp_deep", "model8")
    assert [deep[f"d{index}/kernel"].index("model") for index in (1, 2, 3, 4)] == [1, 0, 1, 0]
    placed = layout.resolve(load("megatron"), mlp(784, 64, 32, 10), MESHES["batch2_model4"])
    assert placed["d3/kernel"].spec == (None, None)
    assert placed["d3/bias"].spec == (None,)
    skipped = "layout.rules[1] skipped: axis 'model' of size 4 does not divide dim 1 (10)"
    assert placed["d3/kernel"].passed == (skipped,)


def test_megatron_shards_attention_by_heads_and_the_mlp_of_a_block_column_then_row() -> None:
    found = specs("megatron", "vit", "batch2_model4")
    block = {path.removeprefix("block_1/"): spec for path, spec in found.items() if path.startswith("block_1/")}
    inward = ("query", "key", "value")
    assert {path: spec for path, spec in block.items() if any(spec)} == {
        **{f"attention/{name}/kernel": (None, "model", None) for name in inward},
        **{f"attention/{name}/bias": ("model", None) for name in inward},
        "attention/output/kernel": ("model", None, None),
        "mlp/up/kernel": (None, "model"),
        "mlp/up/bias": ("model",),
        "mlp/down/kernel": ("model", None),
    }
    assert not any(any(spec) for path, spec in found.items() if not path.startswith("block_"))


@pytest.mark.parametrize("model", MODELS)
def test_fsdp_shards_every_large_variable_on_its_largest_dim(model: str) -> None:
    for path, spec in specs("fsdp", model, "batch8").items():
        shape = MODELS[model][path]
        fitting = [dim for dim in shape if dim % 8 == 0]
        assert any(spec) == (math.prod(shape) >= 1024 and bool(fitting)), path
        if any(spec):
            assert shape[spec.index("batch")] == max(fitting)


def test_fsdp_megatron_adds_the_batch_axis_on_another_dim_that_it_divides() -> None:
    found = specs("fsdp_megatron", "vit", "batch2_model4")
    assert found["block_0/attention/query/kernel"] == ("batch", "model", None)
    assert found["block_0/attention/output/kernel"] == ("model", None, "batch")
    assert found["block_0/mlp/up/kernel"] == ("batch", "model")
    assert found["block_0/mlp/down/kernel"] == ("model", "batch")
    assert found["position/embedding"] == (None, "batch")
    assert specs("fsdp_megatron", "convnet", "batch4_model2")["conv3/kernel"] == (None, None, None, "batch")
    three = specs("fsdp_megatron", "vit_3_heads", "batch2_model4")
    assert three["block_0/attention/query/kernel"] == ("batch", None, None)  # model does not divide the heads


@pytest.mark.parametrize(("preset", "mesh"), [("spatial", "batch4_height2"), ("spatial2d", "batch2_height2_width2")])
def test_spatial_layouts_replicate_every_weight(preset: str, mesh: str) -> None:
    assert not any(any(spec) for model in MODELS for spec in specs(preset, model, mesh).values())
    layout.check_inputs(load(preset), IMAGES, 128, MESHES[mesh])
