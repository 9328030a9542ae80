"""Transformers whose sizes coincide, whose projections are shared or lie beside others: what each variable is."""

import pytest

from runner import layout
from runner.config.schema import LayoutConfig
from runner.layout.axes import Shape
from tests.layout.test_transformers import AXES, M, gpt, placed, specs

MOE = "block_0/moe/experts"


def mixture(width: int = 32, hidden: int = 32) -> dict[str, Shape]:
    """A block of attention and of 4 experts whose gate and up are one kernel, as GPT-OSS."""
    kept = {path: shape for path, shape in gpt().items() if path.startswith("block_0/attention")}
    return kept | {
        f"{MOE}/gate_up_proj": (4, width, 2 * hidden),
        f"{MOE}/gate_up_proj_bias": (4, 2 * hidden),
        f"{MOE}/down_proj": (4, hidden, width),
        f"{MOE}/down_proj_bias": (4, width),
    }


@pytest.mark.parametrize("hidden", [16, 32, 48])
@pytest.mark.parametrize(("preset", "axis"), [("megatron", M), ("experts", "experts"), ("auto", M)])
def test_a_mixture_with_gate_and_up_in_one_kernel_is_sharded_by_experts(hidden: int, preset: str, axis: str) -> None:
    found = specs(mixture(hidden=hidden), preset, **{"batch": 2, axis: 4})
    assert {path.removeprefix(f"{MOE}/"): spec for path, spec in found.items() if path.startswith(MOE)} == {
        "gate_up_proj": (axis, None, None),
        "gate_up_proj_bias": (axis, None),
        "down_proj": (axis, None, None),
        "down_proj_bias": (axis, None),
    }


def test_auto_gives_a_large_variable_of_another_name_the_right_reason() -> None:
    table: dict[str, Shape] = {"mixer/weights": (64, 64), "mixer/tensor": (4, 8, 8, 8), "norm/scale": (2048,)}
    reasons = {path: each.reason for path, each in layout.resolve(LayoutConfig(auto=True), table, AXES).items()}
    assert reasons["mixer/weights"] == "no principle fits a variable of shape [64, 64] in mixer"
    assert reasons["mixer/tensor"] == "no principle fits a variable of shape [4, 8, 8, 8] in mixer"
    assert reasons["norm/scale"] == "no kernel: each device needs all of it"


def test_attention_without_its_own_key_or_value_is_sharded_by_heads() -> None:
    first: dict[str, Shape] = {"query/kernel": (4, 32, 16), "attention_output/kernel": (4, 16, 32)}
    flat: dict[str, Shape] = {"q_proj/kernel": (32, 64), "o_proj/kernel": (64, 32), "q_norm/scale": (16,)}
    for table, query, output in (
        (first, (M, None, None), (M, None, None)),  # Gemma 4's layers that attend to another's keys and values
        (first | {"key/kernel": (1, 32, 16)}, (M, None, None), (M, None, None)),  # and those whose value is the key
        (flat, (None, M), (M, None)),
        (flat | {"k_proj/kernel": (32, 16)}, (None, M), (M, None)),
    ):
        found = specs({f"block/attention/{path}": shape for path, shape in table.items()})
        assert list(found.values()) == [query, output], "one key head is whole"


@pytest.mark.parametrize("out", ["o_proj", "out_proj", "attention_output", "proj"])
@pytest.mark.parametrize("down", ["down_proj", "mlp_out"])
def test_attention_is_recognized_in_one_layer_with_its_feed_forward(out: str, down: str) -> None:
    mlp: dict[str, Shape] = {"gate_proj": (32, 48), "up_proj": (32, 48), down: (48, 32)}
    heads: dict[str, Shape] = dict.fromkeys(("q_proj", "k_proj", "v_proj"), (32, 32))
    table = {f"b/{name}/kernel": shape for name, shape in (mlp | heads | {out: (32, 32)}).items()}
    if out == "proj" and down == "mlp_out":  # the weaker name gives way
        assert f"b/{out}/kernel" not in specs(table)
        return
    assert specs(table) == {
        f"b/{name}/kernel": (M, None) if name in (out, down) else (None, M) for name in (*mlp, *heads, out)
    }


def test_linear_attention_is_not_mistaken_for_attention_with_heads() -> None:
    table: dict[str, Shape] = {"b/in_proj_qkv/kernel": (32, 128), "b/in_proj_z/kernel": (32, 64)}
    table |= {"b/in_proj_a/kernel": (32, 8), "b/out_proj/kernel": (64, 32), "norm/scale": (32,)}
    assert "b/in_proj_qkv/kernel" not in specs(table)


@pytest.mark.parametrize(("width", "hidden"), [(16, 32), (32, 16), (12, 16), (20, 8)])
def test_experts_without_a_gate_have_the_width_of_the_attention_not_of_a_norm(width: int, hidden: int) -> None:
    table = gpt(dim=width, heads=4) | {
        f"{MOE}/up": (4, width, hidden),
        f"{MOE}/down": (4, hidden, width),
        "block_0/attention/query_norm/scale": (hidden,),
    }
    found = specs(table)
    assert (found[f"{MOE}/up"], found[f"{MOE}/down"]) == ((None, None, M), (None, M, None))


@pytest.mark.parametrize("width", [16, 24])
def test_attention_with_heads_first_is_recognized_if_a_head_is_as_wide_as_the_model(width: int) -> None:
    table: dict[str, Shape] = {f"b/{name}/kernel": (4, width, 16) for name in ("query", "key", "value")}
    table["b/output/kernel"] = (4, 16, width)
    for norm in ({}, {"norm/scale": (width,)}):
        found = placed(table | norm)
        assert found["b/query/kernel"].reason == "4 heads of b, model divides them"
        assert {each.spec for path, each in found.items() if path.endswith("kernel")} == {(M, None, None)}


def test_xlnets_form_is_recognized_by_the_model_width_if_head_width_and_heads_are_equal() -> None:
    table: dict[str, Shape] = {f"b/{name}/kernel": (32, 8, 8) for name in ("query", "key", "value", "output")}
    assert set(specs(table | {"norm/scale": (32,)}).values()) == {(None, M, None)}


def test_a_norm_over_all_heads_does_not_tell_the_head_width() -> None:
    table: dict[str, Shape] = {f"b/{name}_proj/kernel": (32, 32) for name in "qkvo"}
    found = placed(table | {"b/q_norm/scale": (32,), "b/k_norm/scale": (32,)})  # as OLMo 2's
    assert found["b/q_proj/kernel"].reason == "32 columns of the heads of b, model divides them"
    assert found["b/o_proj/kernel"].spec == (M, None)
    found = placed(table | {"b/q_norm/scale": (8,), "b/k_norm/scale": (8,)})
    assert found["b/q_proj/kernel"].reason == "4 heads of b, model divides them"


def test_an_adapter_is_sharded_like_its_kernel() -> None:
    layers = ("attention/query", "feedforward/up", "feedforward/down")
    query, up, down = (f"block_0/{layer}/lora_kernel_" for layer in layers)
    table = gpt() | {f"{query}a": (32, 4, 2), f"{query}b": (2, 8), f"{up}a": (32, 2), f"{up}b": (2, 48)}
    table |= {f"{down}a": (48, 2), f"{down}b": (2, 32)}
    for preset, expected in (
        ("megatron", {f"{query}a": (None, M, None), f"{up}b": (None, M), f"{down}a": (M, None)}),
        (
            "fsdp_megatron",
            {
                f"{query}a": ("batch", M, None),
                f"{up}a": ("batch", None),
                f"{up}b": (None, M),
                f"{down}a": (M, None),
                f"{down}b": (None, "batch"),
            },
        ),
    ):
        assert {path: spec for path, spec in specs(table, preset).items() if "lora" in path} == expected
    whole = placed(table)[f"{up}a"]
    assert whole.reason == "the other half of the adapter is sharded like block_0/feedforward/up/kernel"
    assert not whole.passed, "which is as it should be"


def test_attention_whose_output_is_one_level_up_is_recognized() -> None:
    table: dict[str, Shape] = {f"layer_0/attention/self/{name}/kernel": (32, 32) for name in ("query", "key", "value")}
    table |= {"layer_0/attention/output/dense/kernel": (32, 32), "layer_0/attention/output/LayerNorm/gamma": (32,)}
    table |= {"layer_0/intermediate/dense/kernel": (32, 48), "layer_0/output/dense/kernel": (48, 32)}
    assert specs(table) == {  # as Hugging Face's BERT
        path: (M, None) if "output/dense" in path else (None, M) for path, shape in table.items() if len(shape) == 2
    }


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("hidden", [16, 48])
def test_experts_of_the_transformer_are_sharded_by_hidden_units_and_their_router_is_not(
    *, stacked: bool, hidden: int
) -> None:
    name = "blocks" if stacked else "block_0"
    table = {path: shape for path, shape in gpt(6 if stacked else 0).items() if "feedforward/" not in path}
    own: dict[str, Shape] = {
        "router": (32, 4),
        "gate": (4, 32, hidden),
        "up": (4, 32, hidden),
        "down": (4, hidden, 32),
    }
    table |= {f"{name}/experts/{part}/kernel": ((6, *shape) if stacked else shape) for part, shape in own.items()}
    first = (None,) if stacked else ()
    for preset, axes, up, down in (
        ("megatron", {"batch": 2, "model": 4}, (None, None, M), (None, M, None)),
        ("fsdp_megatron", {"batch": 2, "model": 4}, (None, "batch", M), (None, M, "batch")),
        ("experts", {"batch": 2, "experts": 4}, ("experts", None, None), ("experts", None, None)),
        ("fsdp_megatron", {"batch": 2, "model": 2, "experts": 2}, ("experts", "batch", M), ("experts", M, "batch")),
    ):
        found = placed(table, preset, **axes)
        assert found[f"{name}/experts/gate/kernel"].spec == first + up
        assert found[f"{name}/experts/up/kernel"].spec == first + up
        assert found[f"{name}/experts/down/kernel"].spec == first + down
        assert not {M, "experts"}.intersection(found[f"{name}/experts/router/kernel"].spec)
    assert specs(table, "fsdp", batch=2)[f"{name}/experts/down/kernel"].count("batch") == 1
