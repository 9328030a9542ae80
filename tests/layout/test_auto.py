"""What layout=auto proposes, and that what it writes resolves to the same."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import layout
from runner.config.schema import LayoutConfig, RuleConfig
from runner.layout.axes import Shape
from tests.layout.tables import MODELS, mlp, vit

INPUTS: dict[str, list[str | None]] = {"image": ["batch", None, None, None], "label": ["batch"]}
AXES = {"batch": 2, "model": 4}


def config_with(*rules: RuleConfig) -> LayoutConfig:
    return LayoutConfig(auto=True, rules=list(rules), inputs=dict(INPUTS))


def proposed(variables: dict[str, Shape], axes: dict[str, int], *rules: RuleConfig) -> dict[str, layout.Spec]:
    placed = layout.resolve(config_with(*rules), variables, axes)
    return {path: placement.spec for path, placement in placed.items() if (placement.rule or 0) >= len(rules)}


def reasons(variables: dict[str, Shape], axes: dict[str, int]) -> dict[str, str]:
    return {path: placement.reason for path, placement in layout.resolve(config_with(), variables, axes).items()}


def test_a_dense_pair_is_sharded_column_then_row_with_the_bias_of_the_column() -> None:
    assert proposed(mlp(784, 128, 10), AXES) == {
        "d1/kernel": (None, "model"),
        "d1/bias": ("model",),
        "d2/kernel": ("model", None),
        "d2/bias": (None,),
    }


def test_pairs_with_the_most_elements_are_chosen_first() -> None:
    found = proposed(mlp(16, 64, 512, 256, 10), AXES)
    assert found["d2/kernel"] == (None, "model")  # (64, 512) and (512, 256) before (16, 64) and (256, 10)
    assert found["d3/kernel"] == ("model", None)
    assert found["d1/kernel"] == (None, None)  # alone, 1,024 elements of 169,000
    assert found["d4/kernel"] == (None, None)


def test_a_single_dense_layer_is_sharded_if_it_has_an_eighth_of_all_elements() -> None:
    variables: dict[str, Shape] = {"a/kernel": (64, 64), "norm/gamma": (64,), "b/kernel": (64, 64 * 7 - 1)}
    assert proposed(variables, AXES)["a/kernel"] == ("model", None)
    larger: dict[str, Shape] = {**variables, "b/kernel": (64, 64 * 7)}
    assert proposed(larger, AXES)["a/kernel"] == (None, None)
    assert reasons(larger, AXES)["a/kernel"].startswith("alone with 12.5% of all elements")


@pytest.mark.parametrize("widths", [(64, 12), (33, 64), (30, 64, 12), (33, 45, 64), (64, 64, 64, 12)])
def test_the_outputs_are_never_sharded(widths: tuple[int, ...]) -> None:
    found = proposed(mlp(*widths), AXES)
    last = f"d{len(widths) - 1}"
    assert found[f"{last}/kernel"][1] is None
    assert found[f"{last}/bias"] == (None,)


def test_attention_with_indivisible_heads_is_replicated_and_1d_convolutions_are_no_attention() -> None:
    three = vit(dim=48, heads=3, depth=1)
    assert proposed(three, AXES)["block_0/attention/query/kernel"] == (None, None, None)
    assert reasons(three, AXES)["block_0/attention/query/kernel"] == "no axis (model of size 4) divides its 3 heads"
    convolutions: dict[str, Shape] = {
        "a/conv1/kernel": (3, 64, 64),
        "a/conv1/bias": (64,),
        "a/conv2/kernel": (3, 64, 64),
        "a/conv2/bias": (64,),
    }
    assert not any(any(spec) for spec in proposed(convolutions, AXES).values())


def test_convolutions_are_sharded_over_their_output_channels_or_replicated() -> None:
    variables: dict[str, Shape] = {"a/kernel": (3, 3, 32, 64), "b/kernel": (3, 3, 64, 30), "c/kernel": (1, 1, 8, 8)}
    found = proposed(variables, AXES)
    assert found == {
        "a/kernel": (None, None, None, "model"),
        "b/kernel": (None, None, None, None),
        "c/kernel": (None, None, None, None),
    }
    assert "divides the dims of [3, 3, 64, 30]" in reasons(variables, AXES)["b/kernel"]
    assert reasons(variables, AXES)["c/kernel"] == "small, 64 elements"


def test_without_a_model_axis_large_variables_are_sharded_over_the_batch_axis() -> None:
    found = proposed(MODELS["convnet"], {"batch": 8})
    assert found["conv2/kernel"] == (None, None, None, "batch")
    assert found["dense1/kernel"] == (None, "batch")
    assert found["dense1/bias"] == (None,)
    assert not any(any(spec) for spec in proposed(MODELS["vit"], {"batch": 1}).values())


def test_axes_of_the_inputs_shard_no_weight() -> None:
    config = LayoutConfig(auto=True, inputs={"image": ["data", "rows", None, None], "label": ["data"]})
    axes = {"data": 2, "tensor": 2, "rows": 2}
    used = {axis for each in layout.resolve(config, vit(), axes).values() for axis in each.spec}
    assert used == {None, "tensor"}
    del axes["tensor"]
    used = {axis for each in layout.resolve(config, vit(), axes).values() for axis in each.spec}
    assert used == {None, "data"}


def test_the_largest_model_axis_that_divides_is_used() -> None:
    found = proposed(mlp(64, 12, 512, 10), {"batch": 1, "slow": 2, "fast": 8})
    assert found["d2/kernel"] == (None, "fast")
    narrow = proposed(mlp(64, 12, 500, 10), {"batch": 1, "slow": 2, "fast": 8})
    assert narrow["d2/kernel"] == (None, "slow")  # fast does not divide 500


def test_rules_of_the_config_win_and_proposals_are_numbered_after_them() -> None:
    config = config_with(RuleConfig("d1/.*", shard="batch"), RuleConfig("d2/kernel", [None, "model"], optional=True))
    placed = layout.resolve(config, mlp(784, 128, 162), AXES)
    assert placed["d1/kernel"].spec == ("batch", None)
    assert placed["d1/kernel"].rule == 0
    assert placed["d2/kernel"].spec == ("model", None)
    assert placed["d2/kernel"].rule == 2
    assert placed["d2/kernel"].passed[0].startswith("layout.rules[1] skipped: axis 'model' of size 4")
    assert [path for path, each in placed.items() if each.reason] == ["d2/kernel", "d2/bias"]


dims = st.sampled_from([1, 2, 3, 4, 6, 8, 10, 12, 16, 28, 64, 128])
layers = st.sampled_from(["d1", "d2", "d10", "a.b/query", "a.b/output", "conv+1", "b_0/mlp/up", "b_0/mlp/down", "on"])
tables = st.dictionaries(
    st.builds("{}/{}".format, layers, st.sampled_from(["kernel", "bias", "gamma", "no"])),
    st.lists(dims, max_size=4).map(tuple),
    max_size=12,
)
meshes = st.fixed_dictionaries({"batch": st.integers(1, 8)}, optional={"model": st.integers(1, 8), "on": dims})
rule_lists = st.lists(
    st.sampled_from(
        [
            RuleConfig("d1/.*", shard="batch", min_elements=64, optional=True),
            RuleConfig(".*/bias", ["batch"], optional=True),
            RuleConfig(r"d\d+/kernel", [None, "batch"], optional=True),
            RuleConfig(".*'s: # {x}", [], optional=True),
        ]
    ),
    max_size=3,
    unique_by=lambda rule: rule.match,
)


@given(variables=tables | st.sampled_from(list(MODELS.values())), axes=meshes, rules=rule_lists)
def test_every_variable_is_placed_by_a_rule_or_a_proposal_with_its_reason(
    variables: dict[str, Shape], axes: dict[str, int], rules: list[RuleConfig]
) -> None:
    config = config_with(*rules)
    layout.check(config, axes)
    placed = layout.resolve(config, variables, axes)
    assert list(placed) == list(variables)
    for placement in placed.values():
        assert placement.rule is not None
        assert math.prod(placement.shard_shape(axes)) <= math.prod(placement.shape)
        assert "\n" not in placement.reason
        assert bool(placement.reason) == (placement.rule >= len(rules))
