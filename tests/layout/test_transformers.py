"""Transformers known by paths and shapes: KerasHub's (recorded, one block each of width 32), stacked ones, others."""

import json
import math
import re
from pathlib import Path

import pytest

from runner import layout
from runner.config.schema import LayoutConfig, RuleConfig
from runner.errors import ConfigError
from runner.layout import transformers
from runner.layout.axes import Shape
from tests.layout.test_presets import load

AXES = {"batch": 2, "model": 4}
TABLES: dict[str, dict[str, Shape]] = {
    name: {path: tuple(shape) for path, shape in table.items()}
    for name, table in json.loads(Path(__file__).with_name("keras_hub_shapes.json").read_text()).items()
}
M = "model"
TABLE = {"token_embedding/embeddings": (M, None)}
REVERSE = {"token_embedding/reverse_embeddings": (None, M)}
QUERY = {"query/kernel": (None, M, None), "output/kernel": (M, None, None)}
KEYS = {"(key|value)/kernel": (None, M, None)}
BIASES = {"(query|key|value)/bias": (M, None)}
FEW_KEYS = {"(key|value)/(kernel|bias)": ()}  # 2 key/value heads, which an axis of 4 does not divide
PLAIN = {"feedforward_intermediate_dense/kernel": (None, M), "feedforward_intermediate_dense/bias": (M,)}
DOWN = {"feedforward_output_dense/kernel": (M, None)}
GATED = {"feedforward_(intermediate|gate)_dense/kernel": (None, M), **DOWN}
GEMMA = {
    "query/kernel": (M, None, None),
    "output/kernel": (M, None, None),
    "(key|value)/kernel": (),
    "ffw_gating(_2)?/kernel": (None, M),
    "ffw_linear/kernel": (M, None),
}
EXPECTED: dict[str, dict[str, tuple[str | None, ...]]] = {
    "GPT2Backbone": {**TABLE, **QUERY, **KEYS, **BIASES, **PLAIN, **DOWN},
    "BertBackbone": {**TABLE, **QUERY, **KEYS, **BIASES, **PLAIN, **DOWN},
    "GemmaBackbone": {**TABLE, **GEMMA},
    "Gemma3Backbone": {**TABLE, **GEMMA},
    "Llama3Backbone": {**TABLE, **REVERSE, **QUERY, **FEW_KEYS, **GATED},
    "MistralBackbone": {**TABLE, **REVERSE, **QUERY, **FEW_KEYS, **GATED},
    "Qwen3Backbone": {**TABLE, **QUERY, **FEW_KEYS, **GATED},
    "Phi3Backbone": {**TABLE, **REVERSE, **QUERY, **FEW_KEYS, **GATED},
    "MixtralBackbone": {
        **TABLE,
        **REVERSE,
        **QUERY,
        **FEW_KEYS,
        "expert_feedforward_(gate|intermediate)_dense": (None, None, M),
        "expert_feedforward_output_dense": (None, M, None),
    },
    "Qwen3MoeBackbone": {  # gate and up are one kernel, which only a cut by experts keeps together
        **TABLE,
        **REVERSE,
        **QUERY,
        **FEW_KEYS,
        "expert_feedforward_(gate|output)_dense": (M, None, None),
    },
    "ViTBackbone": {
        **QUERY,
        **KEYS,
        **BIASES,
        "mlp/dense_1/kernel": (None, M),
        "mlp/dense_1/bias": (M,),
        "mlp/dense_2/kernel": (M, None),
    },
    "T5Backbone": {
        **TABLE,
        "(query|key|value)_projector/kernel": (None, M),
        "attention/output_projector/kernel": (M, None),
        "layer_0/(input|gate)_projector/kernel": (None, M),
        "layer_0/output_projector/kernel": (M, None),
    },
    "FalconBackbone": {
        **TABLE,
        "(query|key|value)_dense/kernel": (None, M, None),
        "(query|key|value)_dense/bias": (M, None),
        "output_dense/kernel": (M, None),
        "dense_h_to_4h/kernel": (None, M),
        "dense_h_to_4h/bias": (M,),
        "dense_4h_to_h/kernel": (M, None),
    },
    "GPTNeoXBackbone": {
        **TABLE,
        **PLAIN,
        **DOWN,
        "query_key_value/kernel": (None, M, None),
        "query_key_value/bias": (M, None),
        "attention_output/kernel": (M, None),
    },
    "XLNetBackbone": {
        **PLAIN,
        **DOWN,
        "word_embedding/embeddings": (M, None),
        "rel_attn/[a-z_]+/kernel": (None, M, None),
    },
    "FNetBackbone": {
        **TABLE,
        "f_net_layer_0/intermediate_dense/kernel": (None, M),
        "f_net_layer_0/intermediate_dense/bias": (M,),
        "f_net_layer_0/output_dense/kernel": (M, None),
    },
}


def placed(table: dict[str, Shape], preset: str = "megatron", **axes: int) -> dict[str, layout.Placement]:
    return layout.resolve(load(preset), table, axes or AXES)


def specs(table: dict[str, Shape], preset: str = "megatron", **axes: int) -> dict[str, layout.Spec]:
    return {path: each.spec for path, each in placed(table, preset, **axes).items() if any(each.spec)}


def gpt(layers: int = 0, groups: int = 4, dim: int = 32, heads: int = 4, tied: bool = False) -> dict[str, Shape]:
    """A decoder of two blocks; with `layers` one stack of so many."""
    each, hidden, vocabulary = dim // heads, 48, 96
    block: dict[str, Shape] = {
        "attention_norm/scale": (dim,),
        "attention/query/kernel": (dim, heads, each),
        "attention/key/kernel": (dim, groups, each),
        "attention/value/kernel": (dim, groups, each),
        "attention/output/kernel": (heads, each, dim),
        "feedforward_norm/scale": (dim,),
        "feedforward/gate/kernel": (dim, hidden),
        "feedforward/up/kernel": (dim, hidden),
        "feedforward/down/kernel": (hidden, dim),
    }
    table: dict[str, Shape] = {
        "token_embedding/embeddings": (vocabulary, dim),
        "position_embedding/embeddings": (16, dim),
    }
    for name in ("block_0", "block_1") if not layers else ("blocks",):
        table |= {f"{name}/{path}": (layers, *shape) if layers else shape for path, shape in block.items()}
    table["norm/scale"] = (dim,)
    return table if tied else table | {"head/kernel": (dim, vocabulary)}


@pytest.mark.parametrize("model", EXPECTED)
def test_the_recognized_parts_of_a_kerashub_backbone_are_sharded_and_nothing_else(model: str) -> None:
    found, unused = placed(TABLES[model]), set(EXPECTED[model])
    for path, placement in found.items():
        wanted = [(key, spec) for key, spec in EXPECTED[model].items() if re.fullmatch(rf"(.*[/_])?{key}", path)]
        spec = wanted[-1][1] if wanted else ()
        unused -= {key for key, _ in wanted}
        assert placement.spec == (spec or (None,) * len(placement.shape)), path
    assert not unused


@pytest.mark.parametrize("model", TABLES)
@pytest.mark.parametrize("preset", ["megatron", "fsdp_megatron", "auto"])
def test_every_backbone_resolves_whether_or_not_the_axes_divide(model: str, preset: str) -> None:
    for axes in (AXES, {"batch": 1, "model": 8}, {"batch": 2, "model": 3}, {"batch": 2, "model": 2, "experts": 2}):
        for path, each in placed(TABLES[model], preset, **axes).items():
            cut = math.prod(axes[axis] for axis in each.spec if axis)
            assert math.prod(each.shard_shape(axes)) * cut == math.prod(each.shape), path


@pytest.mark.parametrize("model", sorted(set(TABLES) - {"MiTBackbone", "RWKV7Backbone", "Qwen3_5Backbone"}))
def test_most_of_every_transformer_has_a_role(model: str) -> None:
    roles, table = transformers.read(TABLES[model]).roles, TABLES[model]
    whole = {path: shape for path, shape in table.items() if path not in roles and len(shape) > 1}
    known = sum(math.prod(table[path]) for path in roles)
    small = re.compile("position|segment|embedding|conv|pool|router|gate|class|mask|head|rel|pos|token|bias|kernel")
    assert known / sum(map(math.prod, table.values())) > 0.45
    assert all(small.search(path) for path in whole)


def test_a_users_rule_wins() -> None:
    config = load("megatron")
    config.rules.insert(0, RuleConfig("block_0/.*/up/kernel", [None, None]))
    assert layout.resolve(config, gpt(), AXES)["block_0/feedforward/up/kernel"].spec == (None, None)


def test_stacked_layers_are_sharded_like_single_ones_and_never_on_dim_0() -> None:
    single, stacked = specs(gpt()), specs(gpt(layers=8))
    assert {path: spec[1:] for path, spec in stacked.items() if path.startswith("blocks/")} == {
        path.replace("block_0/", "blocks/"): spec for path, spec in single.items() if path.startswith("block_0/")
    }
    for preset in ("fsdp", "fsdp_megatron", "auto"):
        for path, spec in specs(gpt(layers=64), preset, batch=8, model=2).items():
            assert spec[0] is None or not path.startswith("blocks/"), (preset, path)
    assert specs(gpt(layers=64), "auto", batch=8)["blocks/feedforward/up/kernel"] == (None, None, "batch")


def test_heads_first_and_plain_dense_attention_in_a_stack_are_told_apart() -> None:
    norm: dict[str, Shape] = {"blocks/norm/scale": (6, 32)}
    plain = {f"blocks/attention/{name}/kernel": (6, 32, 32) for name in ("query", "key", "value", "output")}
    assert specs({**norm, **plain})["blocks/attention/query/kernel"] == (None, None, M)
    first: dict[str, Shape] = {f"block/attention/{name}/kernel": (8, 32, 4) for name in ("query", "key", "value")}
    first |= {"block/attention/output/kernel": (8, 4, 32), "block/norm/scale": (32,)}
    assert specs(first)["block/attention/query/kernel"] == (M, None, None)


def test_attention_whose_output_was_built_in_another_scope_is_recognized() -> None:
    own: dict[str, Shape] = {"norm/scale": (32,)}
    for block in ("layer_0", "layer_1"):  # as KerasHub's SmolLM3
        own |= {f"{block}/attn/{name}_proj/kernel": (32, 16 if name in "kv" else 32) for name in "qkv"}
        own[f"model/backbone/{block}/attn/o_proj/kernel"] = (4, 8, 32)
    found = placed(own, model=2, batch=4)
    assert found["layer_1/attn/q_proj/kernel"].spec == found["layer_1/attn/k_proj/kernel"].spec == (None, M)
    assert found["model/backbone/layer_1/attn/o_proj/kernel"].spec == (M, None, None)
    assert found["layer_0/attn/v_proj/kernel"].reason == "2 key/value heads of layer_0/attn, model divides them"


def test_key_value_heads_that_the_axis_does_not_divide_are_replicated_with_a_reason() -> None:
    found = placed(gpt(groups=2))
    key = found["block_0/attention/key/kernel"]
    assert key.spec == (None, None, None)
    assert key.reason == "2 key/value heads of block_0/attention, model of size 4 does not divide them"
    assert found["block_0/attention/query/kernel"].reason == "4 heads of block_0/attention, model divides them"
    assert specs(gpt(heads=2, groups=1)) == {
        path: spec for path, spec in specs(gpt()).items() if "attention/" not in path
    }
    divided = layout.resolve(LayoutConfig(auto=True), gpt(groups=2), {**AXES, "small": 2})
    assert divided["block_0/attention/key/kernel"].spec == (None, "small", None)
    assert divided["block_0/attention/query/kernel"].spec == (None, "model", None)


def test_a_vocabulary_that_the_axis_does_not_divide_is_replicated_with_a_reason() -> None:
    table: dict[str, Shape] = {**gpt(tied=True), "token_embedding/embeddings": (97, 32)}
    found = placed(table)["token_embedding/embeddings"]
    assert found.spec == (None, None)
    assert found.reason == "97 tokens of the vocabulary of token_embedding, model of size 4 does not divide them"
    assert any("97 tokens of the vocabulary" in line for line in layout.lint(load("megatron"), placed(table), AXES))


def test_experts_are_sharded_over_the_axis_experts_if_the_mesh_has_it() -> None:
    both = specs(TABLES["MixtralBackbone"], batch=2, model=2, experts=2)
    experts = "transformer_layer_0/mixtral_sparse_moe_block/experts/expert_feedforward"
    assert both[f"{experts}_gate_dense"] == ("experts", None, M)
    assert both[f"{experts}_output_dense"] == ("experts", M, None)
    alone = specs(TABLES["MixtralBackbone"], "experts", batch=2, experts=4)
    assert {path.removeprefix(experts): spec for path, spec in alone.items()} == {
        f"_{name}_dense": ("experts", None, None) for name in ("gate", "intermediate", "output")
    }
    proposed = specs(TABLES["Qwen3MoeBackbone"], "auto", batch=2, experts=4)
    assert {spec for path, spec in proposed.items() if "/experts/" in path} == {("experts", None, None)}
    assert all("/experts/" in path for path in proposed)


def test_a_rule_for_transformers_that_finds_none_is_refused_unless_it_is_optional() -> None:
    config = LayoutConfig(rules=[RuleConfig(".*", transformer=M)])
    with pytest.raises(ConfigError, match=r"applies to no variable .no attention, feed-forward or"):
        layout.resolve(config, {"d1/kernel": (8, 8), "d2/kernel": (8, 8)}, AXES)
    config = LayoutConfig(rules=[RuleConfig(".*", transformer=M, optional=True)])
    assert not any(layout.resolve(config, {"d1/kernel": (8, 8)}, AXES)["d1/kernel"].spec)


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        (RuleConfig(".*", transformer="heads"), ("layout.rules[0].transformer=heads", "no axis 'heads'")),
        (RuleConfig(".*", transformer=M, store="host"), ("layout.rules[0].store=host", "no axis 'host'")),
        (RuleConfig(".*", transformer=M, store=M), ("layout.rules[0].store=model", "on another axis than that")),
        (RuleConfig(".*", shard=M, store="batch"), ("layout.rules[0].store=batch", "works with transformer only")),
        (RuleConfig(".*", transformer=M, shard=M), ("rules[0].spec=null", "has shard and transformer")),
    ],
)
def test_an_impossible_transformer_rule_is_rejected(rule: RuleConfig, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        layout.check(LayoutConfig(rules=[rule]), AXES)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
