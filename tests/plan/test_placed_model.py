"""Estimates from shapes alone, against figures worked out by hand."""

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.engine.base import INPUTS, Collective, LayerInput, LayerOutput
from runner.engine.layer_notes import Outputs
from runner.layout import Placement
from runner.plan import communication, memory
from runner.plan.base import Rates
from runner.plan.communication_dtensor import collectives
from runner.plan.flops import attention_flops, layer_flops
from runner.plan.placed_model import PlacedModel
from runner.plan.rates import ring_factor, traffic
from tests.plan import cases


def words(found: list[Collective]) -> set[tuple[str, str, str, str, int]]:
    return {(each.kind, each.axis, each.phase, each.origin, each.bytes) for each in found}


def test_replicated_variables_cost_one_all_reduce_of_each_gradient() -> None:
    found = collectives(cases.placed(*cases.LAYOUTS["replicated"]))
    assert words(found) == {
        ("all_reduce", "batch", "backward", "d1/kernel", 784 * 128 * 4),
        ("all_reduce", "batch", "backward", "d1/bias", 512),
        ("all_reduce", "batch", "backward", "d2/kernel", 5120),
        ("all_reduce", "batch", "backward", "d2/bias", 40),
    }


def test_a_variable_stored_in_parts_over_a_data_axis_is_gathered_and_its_whole_gradient_reduced() -> None:
    found = words(collectives(cases.placed(*cases.LAYOUTS["kernels_over_batch"])))
    assert ("all_gather", "batch", "forward", "d1/kernel", 784 * 128 * 4) in found
    assert ("all_reduce", "batch", "backward", "d1/kernel", 784 * 128 * 4) in found
    assert len(found) == 6


def test_split_columns_then_split_rows_cost_one_all_reduce_of_the_outputs() -> None:
    model = cases.placed(*cases.LAYOUTS["column_row"])
    found = words(collectives(model))
    assert {each for each in found if each[1] == "model"} == {("all_reduce", "model", "forward", "d2", 32 * 10 * 4)}
    assert ("all_reduce", "batch", "backward", "d1/kernel", 784 * 64 * 4) in found
    # A number that a layer returns before its output, as a loss, costs nothing.
    calls = [(replace(output, shape=(), is_extra=True), output) for output in model.outputs]
    with_numbers = replace(model, outputs=[*chain(*calls)])
    assert words(collectives(with_numbers)) == found
    of_jax = [communication.collectives(each, compute_width=4, recomputes=False) for each in (model, with_numbers)]
    assert of_jax[0] == of_jax[1]


def test_split_columns_cost_an_all_reduce_of_the_input_gradient_but_for_the_first_layer() -> None:
    step = cases.placed({"batch": 4, "model": 2}, [["d1/kernel", [None, "model"]], ["d2/kernel", [None, "model"]]])
    between = {each for each in words(collectives(step)) if each[1] == "model"}
    assert between == {("all_reduce", "model", "backward", "d2", 32 * 128 * 4)}


def test_an_axis_of_one_device_costs_nothing() -> None:
    found = words(collectives(cases.placed(*cases.LAYOUTS["one_device_of_batch"])))
    assert found == {("all_reduce", "model", "forward", "d2", 128 * 10 * 4)}


def attention(axes: dict[str, int]) -> PlacedModel:
    """Query, key, value and output of one attention layer over 16 tokens, heads split over `model`."""
    names = ("query", "key", "value")
    variables: cases.Variables = {
        "embed/kernel": ((3, 32), (None, None)),
        **{f"attention/{name}/kernel": ((32, 4, 8), (None, "model", None)) for name in names},
        "attention/output/kernel": ((4, 8, 32), ("model", None, None)),
    }
    heads = [LayerOutput(f"attention/{name}", "EinsumDense", (64, 16, 4, 8), "float32") for name in names]
    outputs = [LayerOutput("embed", "Dense", (64, 16, 32), "float32"), *heads]
    outputs.append(LayerOutput("attention/output", "EinsumDense", (64, 16, 32), "float32"))
    return cases.model(variables, outputs, axes, cases.INPUTS)


def test_attention_sums_its_inputs_gradient_once_and_its_output_once() -> None:
    found = collectives(attention({"batch": 4, "model": 2}))
    between = [(each.phase, each.origin, each.bytes) for each in found if each.axis == "model"]
    size = 16 * 16 * 32 * 4
    assert between == [("backward", "attention/query", size), ("forward", "attention/output", size)]


def test_heads_split_the_work_of_attention() -> None:
    step = attention({"batch": 4, "model": 2})
    query = step.outputs[1]
    assert step.output_spec(query) == ("batch", None, "model", None)
    assert layer_flops(step, query) == 3 * 2 * (32 * 4 * 8) * (64 * 16) // 8
    assert step.output_bytes(query, 4) == 64 * 16 * 4 * 8 * 4 // 8


def test_a_model_may_have_more_layers_than_calls_may_be_nested() -> None:
    axes, shape = {"batch": 4, "height": 2}, (64, 28, 28, 3)
    before = [LayerInput(INPUTS, shape), *(LayerInput(f"layer_{index}", shape) for index in range(3000))]
    outputs = [LayerOutput(f"layer_{i}", "ReLU", shape, "float32", (taken,)) for i, taken in enumerate(before)]
    image = {"image": ("batch", "height", None, None)}
    model = PlacedModel({}, set(), outputs, axes, image, {})
    assert model.output_spec(outputs[-1]) == ("batch", "height", None, None)
    assert model.inner_spec(outputs[-1]) == ("height", None)


def test_a_convolution_works_at_every_position_of_its_output_and_is_split_by_height() -> None:
    output = LayerOutput("c", "Conv2D", (8, 28, 28, 16), "float32")
    image = {"image": ("batch", "height", None, None)}
    step = cases.model({"c/kernel": ((3, 3, 8, 16), (None,) * 4)}, [output], {"batch": 2, "height": 2}, image)
    assert step.output_spec(output) == ("batch", "height", None, None)
    # The first layer computes no gradient of its input.
    assert layer_flops(step, output) == 2 * 2 * (3 * 3 * 8 * 16) * (8 * 28 * 28) // 4
    twice = replace(output, kind="Conv2DTranspose", shape=(8, 56, 56, 8), inputs=(LayerInput("x", output.shape),))
    assert layer_flops(replace(step, outputs=[twice]), twice) == layer_flops(step, output)
    (found,) = collectives(step)
    assert (found.axis, found.bytes) == ("batch+height", 3 * 3 * 8 * 16 * 4)


def step(outputs: list[LayerOutput], shapes: dict[str, tuple[int, ...]], image: tuple[str | None, ...]) -> PlacedModel:
    """Returns a step on a mesh of 2 x 2 whose convolutions read kernels whole; moving statistics are untrained."""
    variables = {path: (shape, (None,) * len(shape)) for path, shape in shapes.items()}
    whole = {path for path, shape in shapes.items() if len(shape) == 4}
    made = cases.model(variables, outputs, {"batch": 2, "height": 2}, {"image": image}, whole=whole)
    return replace(made, trained={path for path in shapes if "moving" not in path})


def between(found: list[Collective]) -> list[tuple[str, str, str, str, int]]:
    return [(each.phase, each.kind, each.axis, each.origin, each.bytes) for each in found]


IMAGE = LayerInput(INPUTS, (8, 16, 16, 4))


@pytest.mark.parametrize("scale", [True, False])
def test_batch_statistics_are_two_sums_forward_and_two_backward_over_all_that_is_split(scale: bool) -> None:
    shapes = {"n/beta": (4,), "n/moving_mean": (4,)} | ({"n/gamma": (4,)} if scale else {})
    outputs = [LayerOutput("n", "BatchNormalization", IMAGE.shape, "float32", (IMAGE,))]
    found = between(collectives(step(outputs, shapes, ("batch", "height", None, None))))
    assert {each[1:3] for each in found} == {("all_reduce", "batch+height")}
    backward = {each[3] for each in found if each[0] == "backward"}
    assert backward == {"n/beta", "n/gamma" if scale else "n"}
    assert sorted(each[0] for each in found) == ["backward", "backward", "forward", "forward"]


def test_two_shifts_under_one_addition_have_one_gradient() -> None:
    taken = LayerInput(INPUTS, (8, 32))
    names = ("left", "right")
    outputs = [LayerOutput(name, "Dense", (8, 6), "float32", (taken,)) for name in names]
    outputs.append(LayerOutput("sum", "Add", (8, 6), "float32", tuple(LayerInput(name, (8, 6)) for name in names)))
    shapes = {"left/bias": (6,), "right/bias": (6,)}
    found = collectives(step(outputs, shapes, ("batch", None, None, None)))
    assert [each.origin for each in found] == ["right/bias"]


def test_attentions_scores_and_their_product_with_the_values_are_counted() -> None:
    query, keys = LayerInput("q", (8, 5, 4, 16)), LayerInput("k", (8, 7, 4, 16))
    output = LayerOutput("mix", "Mix", (8, 5, 4, 16), "float32", (query, keys, keys))
    heads = [LayerOutput(each.layer, "EinsumDense", each.shape, "float32") for each in (query, keys)]
    made = step([*heads, output], {"q/kernel": (64, 4, 16)}, ("batch", "height", None, None))
    flops = 2 * 3 * 2 * (4 * 4 * 5 * 7 * 16)  # half of the batch, whatever the height
    assert layer_flops(made, output) == flops
    # A call may return a number, and its scores.
    outputs = [*heads, replace(output, shape=()), output, replace(output, shape=(8, 4, 5, 7), is_extra=True)]
    assert attention_flops(replace(made, outputs=outputs)) == flops
    stock = {f"mha/_{name}_dense/kernel": (32, 4, 8) for name in ("query", "key", "value")}
    tokens = LayerInput("x", (8, 5, 32))
    layer = LayerOutput("mha", "MultiHeadAttention", (8, 5, 32), "float32", (tokens, tokens))
    projections = 3 * (32 * 4 * 8) * (4 * 5)
    made = step([layer], stock, ("batch", None, None, None))
    # Nothing before it is trained, so that its projections have no gradient of their input.
    assert layer_flops(made, layer) == 2 * 2 * projections + 3 * 2 * 2 * (4 * 4 * 5 * 5 * 8)


def test_all_outputs_of_a_call_but_its_first_with_the_examples_are_extra() -> None:
    def arrays(tree: Any) -> list[np.ndarray[Any, Any]]:
        return [tree] if isinstance(tree, np.ndarray) else [array for part in tree for array in arrays(part)]

    notes = Outputs({}, arrays)
    x = np.zeros((4, 8))
    notes.begin(x)
    notes.recorded(SimpleNamespace(name="head"), lambda x: (np.zeros(()), x + 1, x @ x.T))(x)
    assert [output.is_extra for output in notes.found] == [True, False, True]


def test_variables_without_gradients_are_not_reduced() -> None:
    step = cases.placed(*cases.LAYOUTS["replicated"])
    frozen = replace(step, trained={"d2/bias"})
    assert [each.origin for each in collectives(frozen)] == ["d2/bias"]


@pytest.mark.parametrize(
    ("kind", "device", "factor"),
    [("all_reduce", "gpu", 1.5), ("all_gather", "gpu", 0.75), ("all_gather", "cpu", 1.5), ("all_to_all", "cpu", 0.75)],
)
def test_ring_factors(kind: str, device: str, factor: float) -> None:
    assert ring_factor(kind, 4, device) == factor


def test_collectives_are_grouped_by_phase_kind_and_axis_with_their_time() -> None:
    found = [
        Collective("all_reduce", "batch", "backward", "a", 1, 6_000_000),
        Collective("all_reduce", "batch", "backward", "b", 0, 2_000_000),
        Collective("all_reduce", "model", "forward", "c", 1, 1_000_000),
    ]
    forward, backward = traffic(found, {"batch": 4, "model": 2}, Rates("gpu", 2.0, 1.0, ""))
    assert (forward.phase, forward.axis, forward.seconds) == ("forward", "model", pytest.approx(0.5e-3))
    assert (backward.count, backward.bytes, backward.seconds) == (1, 8_000_000, pytest.approx(6e-3))


def test_an_input_goes_by_its_name_and_its_dims_stay_split_while_the_rank_does() -> None:
    inputs = {"series": ("batch", "time", None), "vector": ("batch", None)}
    series, vector = LayerInput(f"{INPUTS}/series", (8, 32, 4)), LayerInput(f"{INPUTS}/vector", (8, 5))
    outputs = [
        LayerOutput("smooth", "Conv1D", (8, 32, 6), "float32", (series,)),
        LayerOutput("act", "Activation", (8, 32, 6), "float32", (LayerInput("smooth", (8, 32, 6)),)),
        LayerOutput("flat", "Flatten", (8, 192), "float32", (LayerInput("act", (8, 32, 6)),)),
        LayerOutput("dense", "Dense", (8, 3), "float32", (vector,)),
    ]
    made = PlacedModel({}, set(), outputs, {"batch": 2, "time": 4}, inputs, {})
    assert made.data_axes == {"batch", "time"}
    assert [made.output_spec(output) for output in outputs] == [
        ("batch", "time", None),
        ("batch", "time", None),
        ("batch", None),
        ("batch", None),
    ]


def of_tokens(axes: dict[str, int], split: str | None, **variables: tuple[int, ...]) -> PlacedModel:
    """Returns a model of 4 rows of 8 tokens whose variables are of the layer `x`, experts over the axis `experts`."""
    specs = {2: (None, None), 3: ("experts", None, None)}
    placed = {f"x/{name}": (shape, specs[len(shape)]) for name, shape in variables.items()}
    experts = {path for path, (shape, _) in placed.items() if len(shape) == 3}
    placed["first/kernel"] = ((2, 2), (None, None))
    first = [LayerOutput("first", "Dense", (4, 8, 16), "float32")]
    fields = {"experts": experts, "row_tokens": 8, "token_axis": split}
    return cases.model(placed, first, axes, {"tokens": ("batch", split)}, **fields)


def test_an_axis_that_splits_tokens_shares_the_work_of_layers_heads_and_attention_out() -> None:
    whole, split = (of_tokens({"batch": 2, "sequence": 4}, axis, kernel=(16, 32)) for axis in (None, "sequence"))
    heads = tuple(LayerInput("first", (4, 8, 2, 8)) for _ in range(3))
    outputs = [
        LayerOutput("x", "Dense", (4, 8, 32), "float32", (LayerInput("first", (4, 8, 16)),)),
        LayerOutput("mix", "Mix", (4, 8, 2, 8), "float32", heads),
    ]
    for output in outputs:
        assert split.output_spec(output)[:2] == ("batch", "sequence")
        assert layer_flops(split, output) == layer_flops(whole, output) // 4 > 0


def test_every_expert_of_a_mixture_computes_every_token_and_an_axis_shares_them_out() -> None:
    # KerasHub's take all tokens of a batch in one dim.
    output = LayerOutput("x", "ExpertBank", (4, 32, 16), "float32", (LayerInput("first", (32, 16)),))
    sizes = {"up": (4, 16, 24), "down": (4, 24, 16)}
    product = 2 * 4 * 16 * 24 * 32
    assert layer_flops(of_tokens({"batch": 1, "experts": 1}, None, **sizes), output) == 3 * 2 * product
    assert layer_flops(of_tokens({"batch": 2, "experts": 4}, None, **sizes), output) == 3 * 2 * product // 8


def of_experts(axes: dict[str, int]) -> tuple[PlacedModel, list[LayerOutput]]:
    """Returns the layers of `model.experts`: 4 experts of 16 to 24, of 4 rows of 8 tokens."""
    shapes = {"router": (16, 4), "gate": (4, 16, 24), "up": (4, 16, 24), "down": (4, 24, 16)}
    hidden, vectors = (4, 8, 4, 24), (4, 8, 16)
    specs: dict[str, tuple[str | None, ...]] = dict.fromkeys(shapes, ("experts", None, "model"))
    specs |= {"router": (None, None), "down": ("experts", "model", None)}
    variables = {f"experts/{name}/kernel": (shape, specs[name]) for name, shape in shapes.items()}
    variables["first/kernel"] = ((2, 2), (None, None))
    outputs = [
        LayerOutput("first", "Dense", vectors, "float32"),
        LayerOutput("experts/router", "Dense", (4, 8, 4), "float32", (LayerInput("first", vectors),)),
        LayerOutput("experts/gate", "EinsumDense", hidden, "float32", (LayerInput("first", vectors),)),
        LayerOutput("experts/up", "EinsumDense", hidden, "float32", (LayerInput("first", vectors),)),
        LayerOutput("experts/down", "EinsumDense", vectors, "float32", (LayerInput("", hidden),)),
    ]
    experts = {path for path, (shape, _) in variables.items() if len(shape) == 3}
    all_axes = {"batch": 1, "model": 1, "experts": 1} | axes
    return cases.model(variables, outputs, all_axes, {"tokens": ("batch", None)}, experts=experts), outputs


def test_experts_of_a_kernel_each_are_counted_once_whatever_axes_split_them() -> None:
    product = 3 * 2 * 4 * 16 * 24 * 32
    for axes, devices in (({}, 1), ({"batch": 2}, 2), ({"batch": 2, "model": 2}, 4), ({"model": 2, "experts": 4}, 8)):
        model, (_, router, *experts) = of_experts(axes)
        assert [layer_flops(model, output) for output in experts] == [product // devices] * 3
        assert layer_flops(model, router) == 3 * 2 * 16 * 4 * 32 // axes.get("batch", 1)


def test_hidden_units_of_experts_are_split_as_experts_and_as_hidden_units() -> None:
    model, (_, _, gate, _, down) = of_experts({"batch": 2, "model": 2, "experts": 4})
    assert model.output_spec(gate) == ("batch", None, "experts", "model")
    assert model.output_spec(down) == ("batch", None, None)
    sums = [
        (entry.axis, entry.bytes)
        for entry in communication.collectives(model, compute_width=4, recomputes=False)
        if entry.kind == "all_reduce" and entry.phase == communication.FORWARD
    ]
    # Of the products with down alone, which add up hidden units and experts.
    assert sums == [("experts+model", 4 // 2 * 8 * 16 * 4)]


def test_values_of_a_block_count_the_hidden_units_of_all_experts() -> None:
    model, _ = of_experts({"model": 2})
    model = replace(model, outputs=[LayerOutput("first", "Dense", (4, 8, 16), "float32")])
    kernels = [placement for path, placement in model.placements.items() if path.startswith("experts/")]
    norm = Placement("experts/norm/scale", (16,), (None,), None)
    # What the experts are, the norm's width tells.
    model = replace(model, placements={**model.placements, norm.path: norm})
    positions = memory._positions_per_device(model)
    assert positions == 32
    assert memory._block_values(model, kernels, 1, positions) == 32 * (4 + 2 * 4 * 24 // 2 + 16)


def test_products_with_heads_are_summed_over_no_axis_that_splits_the_heads() -> None:
    variables: cases.Variables = {
        "query/kernel": ((16, 4, 8), (None, "model", None)),
        "output/kernel": ((4, 8, 16), ("model", None, None)),
    }
    outputs = [
        LayerOutput("query", "EinsumDense", (4, 8, 4, 8), "float32", (LayerInput("", (4, 8, 16)),)),
        LayerOutput("output", "EinsumDense", (4, 8, 16), "float32", (LayerInput("", (4, 8, 4, 8)),)),
    ]
    model = cases.model(variables, outputs, {"batch": 1, "model": 2}, {"tokens": ("batch", None)})
    found = communication.collectives(model, compute_width=4, recomputes=False)
    assert {entry.origin for entry in found if entry.axis == "model"} == {"output"}


def test_a_table_that_gives_logits_is_a_product() -> None:
    model = of_tokens({"batch": 2}, None, embeddings=(100, 16))
    logits = LayerOutput("x", "ReversibleEmbedding", (4, 8, 100), "float32", (LayerInput("first", (4, 8, 16)),))
    vectors = LayerOutput("x", "ReversibleEmbedding", (4, 8, 16), "float32", (LayerInput("tokens", (4, 8)),))
    assert layer_flops(model, logits) == 3 * 2 * 16 * 100 * 32 // 2
    assert layer_flops(model, vectors) == 0


def test_a_number_among_a_heads_outputs_is_split_by_no_axis() -> None:
    output = LayerOutput("x", "Head", (), "float32", (LayerInput("first", (4, 8, 16)),))
    model = of_tokens({"batch": 2, "sequence": 4}, "sequence", kernel=(16, 32))
    assert model.output_spec(output) == ()
