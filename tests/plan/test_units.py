"""Which mesh axes shard the arrays that a step keeps, against hand arithmetic."""

from dataclasses import replace
from math import prod

import pytest

from runner import layout
from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig
from runner.layout import Placement
from runner.plan import memory
from runner.plan.placed_model import PlacedModel
from runner.plan.units import Units

# Sizes of a mixture with as many experts as key/value heads: B examples, T tokens, D width, H heads, G key/value heads
# with K numbers each, Q = H / G, E experts, F hidden units, V tokens of the vocabulary.
B, T, D, H, G, K, Q, E, F, V = 16, 32, 64, 8, 4, 8, 2, 4, 192, 96
MIXTURE = {"experts/router": (D, E), "experts/gate": (E, D, F), "experts/up": (E, D, F), "experts/down": (E, F, D)}
DENSE = {"feedforward/gate": (D, F), "feedforward/up": (D, F), "feedforward/down": (F, D)}
ATTENTION = {
    "attention/query": (D, H, K),
    "attention/key": (D, G, K),
    "attention/value": (D, G, K),
    "attention/output": (H, K, D),
}


def placed(
    option: str, axes: dict[str, int], feedforward: dict[str, tuple[int, ...]], depth: int | None = None
) -> PlacedModel:
    """Returns a transformer of one block, or of a scanned stack, on a mesh with a layout of the project."""
    stack = () if depth is None else (depth,)
    block = "block_0" if depth is None else "blocks"
    shapes: dict[str, tuple[int, ...]] = {
        "token_embedding/embeddings": (V, D),
        "norm/scale": (D,),
        "head/kernel": (D, V),
    }
    shapes[f"{block}/attention_norm/scale"] = (*stack, D)
    for path, shape in (ATTENTION | feedforward).items():
        shapes[f"{block}/{path}/kernel"] = (*stack, *shape)
    config = build(LayoutConfig, search_path.content_of(f"layout/{option}"), "layout")
    assert isinstance(config, LayoutConfig)
    return of(layout.resolve(config, shapes, axes), axes, row_tokens=T)


def of(placements: dict[str, Placement], axes: dict[str, int], **fields: object) -> PlacedModel:
    inputs = {"tokens": ("batch", None)}
    model = PlacedModel(placements, set(placements), [], axes, inputs, dict.fromkeys(placements, 4))
    return replace(model, **fields)  # type: ignore[arg-type]


def shards(model: PlacedModel, *shape: int, examples: int = B) -> int:
    """Returns by how many devices an array of the forward pass is divided."""
    return prod(shape) * 4 // memory.array_bytes(model, shape, "float32", examples)


def test_hidden_units_of_experts_are_divided_by_experts_and_by_hidden_units() -> None:
    model = placed("megatron", {"batch": 2, "model": 2, "experts": 4}, MIXTURE)
    assert shards(model, B, T, E, F) == 2 * 4 * 2
    # Experts of KerasHub compute all tokens in one dim.
    assert shards(model, E, B * T, F) == 2 * 4 * 2
    assert shards(model, E, B * T, D) == 2 * 4
    # A router's results end with the experts.
    assert shards(model, B, T, E) == shards(model, B, T, E, 1) == shards(model, B * T, E) == 2 * 4


def test_keys_and_values_are_divided_by_heads_though_there_are_as_many_experts() -> None:
    model = placed("megatron", {"batch": 2, "model": 2, "experts": 4}, MIXTURE)
    for shape in ((B, T, G, K), (B, T, H, K), (B, T, G, Q, K), (Q, B, G, T, T), (Q, B, G, T, 1), (B, H, T)):
        assert shards(model, *shape) == 2 * 2
    assert shards(model, B, T, V) == 2 * 2
    for shape in ((B, T, D), (B, T), (B * T, D)):
        assert shards(model, *shape) == 2


def test_experts_alone_divide_nothing_of_attention() -> None:
    model = placed("experts", {"batch": 2, "experts": 4}, MIXTURE)
    assert shards(model, B, T, E, F) == 2 * 4
    for shape in ((B, T, G, K), (B, T, H, K), (B, T, G, Q, K), (Q, B, G, T, T), (Q, B, G, T, 1), (B, H, T)):
        assert shards(model, *shape) == 2
    # Keys of as many tokens as the model is wide are not the width beside the experts.
    assert shards(replace(model, row_tokens=D), Q, B, G, D, D) == 2


def test_a_dense_model_is_divided_by_the_batch_and_by_one_axis() -> None:
    model = placed("megatron", {"batch": 2, "model": 4}, DENSE)
    for shape in ((B, T, G, K), (B, T, H, K), (B, T, F), (B, T, V), (Q, B, G, T, T), (B, H, T)):
        assert shards(model, *shape) == 2 * 4
    for shape in ((B, T, D), (B, T)):
        assert shards(model, *shape) == 2


def test_tokens_are_divided_by_the_axis_of_sequences_once() -> None:
    model = placed("megatron", {"batch": 2, "model": 2, "sequence": 4}, DENSE)
    model = replace(model, token_axis="sequence", inputs={"tokens": ("batch", "sequence")})
    assert shards(model, B, T, D) == shards(model, B, T) == shards(model, B * T, D) == 2 * 4
    for shape in ((B, T, G, K), (B, T, F), (Q, B, G, T, T), (B, H, T)):
        assert shards(model, *shape) == 2 * 4 * 2
    # A loss in chunks: chunks, parts along the examples, parts along the tokens, tokens, features.
    assert shards(model, H, 2, 4, B * T // H // 8, D) == 2 * 4


@pytest.mark.parametrize("steps", [H, H // 2])
def test_layers_of_a_scan_are_not_heads(steps: int) -> None:
    # With local and global blocks, each of four steps computes two layers, and there are four key/value heads.
    model = placed("megatron", {"batch": 2, "model": 4}, DENSE, depth=H)
    assert model.depth == H
    assert shards(model, steps, B, T, D) == 2
    assert shards(model, steps, B, T, F) == shards(model, steps, B, T, G, K) == shards(model, steps, B, H, T) == 2 * 4
    assert shards(model, steps, steps, T, D, examples=steps) == 2


def test_tokens_are_not_hidden_units_and_the_width_is_not_either() -> None:
    model = placed("megatron", {"batch": 2, "model": 4}, DENSE)
    as_long = replace(model, row_tokens=F)
    assert shards(as_long, B, F, D) == 2
    assert shards(as_long, B, F, F) == 2 * 4
    # Which of both an array has is not known then: it counts as the width, which is not sharded.
    shapes = {"feedforward/gate": (D, D), "feedforward/up": (D, D), "feedforward/down": (D, D)}
    assert shards(placed("megatron", {"batch": 2, "model": 4}, shapes), B, T, D) == 2


def test_as_many_logits_as_tokens_of_a_batch_are_logits() -> None:
    model = placed("megatron", {"batch": 2, "model": 4}, DENSE)
    assert shards(replace(model, row_tokens=V // 6), 6, V // 6, V, examples=6) == 2 * 4


def test_heads_are_known_from_kernels_of_two_dims() -> None:
    shapes = {
        "attention/query/kernel": (D, H * K),
        "attention/key/kernel": (D, G * K),
        "attention/value/kernel": (D, G * K),
        "attention/output/kernel": (H, K, D),
    }
    config = build(LayoutConfig, search_path.content_of("layout/megatron"), "layout")
    assert isinstance(config, LayoutConfig)
    axes = {"batch": 2, "model": 4}
    model = of(layout.resolve(config, shapes, axes), axes)
    assert shards(model, B, T, G * K) == shards(model, B, T, G, K) == shards(model, B, T, H, K) == 2 * 4


def test_of_variables_without_a_role_each_sharded_dim_counts_and_an_axis_once() -> None:
    axes = {"batch": 2, "rows": 2, "columns": 4}
    placements = {
        "mixing/kernel": Placement("mixing/kernel", (6, 8, 20), ("rows", None, "columns"), None),
        "other/kernel": Placement("other/kernel", (8, 12), (None, "columns"), None),
    }
    model = of(placements, axes)
    assert shards(model, B, 6, 20) == 2 * 2 * 4
    assert shards(model, B, 20, 12) == 2 * 4
    assert shards(model, B, 8) == 2


def test_units_are_found_in_their_order_and_at_the_end_or_before_it() -> None:
    pair = Units((4, 8), ("experts", "model"))
    assert pair.place((16, 4, 32, 8), [1, 2, 3]) == [1, 3]
    assert pair.place((16, 8, 4), [1, 2]) is None
    assert pair.place((16, 4, 8), [2]) is None
    assert Units((4,), ("model",), is_last=False).place((4, 2, 4), [2]) is None
    assert Units((4,), ("experts",), is_last=True).place((4, 2, 4), [0, 2]) == [2]


@pytest.mark.parametrize("examples", [1, 2])
def test_tokens_of_few_examples_are_not_taken_for_the_layers_of_a_scan(examples: int) -> None:
    # All tokens of the microbatch are as many as the layers, or half of them.
    model = replace(placed("megatron", {"batch": 1, "model": 2}, DENSE, depth=32), row_tokens=16)
    assert shards(model, examples * 16, D, examples=examples) == 1
    assert shards(model, examples * 16, F, examples=examples) == 2
    assert shards(model, 32, examples, 16, F, examples=examples) == 2
    assert shards(model, 32, examples * 16, F, examples=examples) == 2
