"""Estimates from shapes alone, against figures worked out by hand."""

from __future__ import annotations

import pytest

from runner.engine.base import Collective, LayerOutput
from runner.layout import Placement
from runner.plan import estimate
from runner.plan.base import Rates
from runner.plan.rates import ring_factor, traffic
from tests.plan import cases


def words(found: list[Collective]) -> set[tuple[str, str, str, str, int]]:
    return {(each.kind, each.axis, each.phase, each.origin, each.bytes) for each in found}


def test_replicated_variables_cost_one_all_reduce_of_each_gradient() -> None:
    found = estimate.collectives(cases.step(*cases.LAYOUTS["replicated"]))
    assert words(found) == {
        ("all_reduce", "batch", "backward", "d1/kernel", 784 * 128 * 4),
        ("all_reduce", "batch", "backward", "d1/bias", 512),
        ("all_reduce", "batch", "backward", "d2/kernel", 5120),
        ("all_reduce", "batch", "backward", "d2/bias", 40),
    }
    assert not any(each.counted for each in found)


def test_a_variable_stored_in_parts_over_a_data_axis_is_gathered_and_its_whole_gradient_reduced() -> None:
    found = words(estimate.collectives(cases.step(*cases.LAYOUTS["kernels_over_batch"])))
    assert ("all_gather", "batch", "forward", "d1/kernel", 784 * 128 * 4) in found
    assert ("all_reduce", "batch", "backward", "d1/kernel", 784 * 128 * 4) in found
    assert len(found) == 6


def test_split_columns_then_split_rows_cost_one_all_reduce_of_the_outputs() -> None:
    found = words(estimate.collectives(cases.step(*cases.LAYOUTS["column_row"])))
    assert {each for each in found if each[1] == "model"} == {("all_reduce", "model", "forward", "d2", 32 * 10 * 4)}
    assert ("all_reduce", "batch", "backward", "d1/kernel", 784 * 64 * 4) in found


def test_split_columns_cost_an_all_reduce_of_the_input_gradient_but_for_the_first_layer() -> None:
    step = cases.step({"batch": 4, "model": 2}, [["d1/kernel", [None, "model"]], ["d2/kernel", [None, "model"]]])
    moved = {each for each in words(estimate.collectives(step)) if each[1] == "model"}
    assert moved == {("all_reduce", "model", "backward", "d2", 32 * 128 * 4)}


def test_an_axis_of_one_device_costs_nothing() -> None:
    found = words(estimate.collectives(cases.step(*cases.LAYOUTS["one_device_of_batch"])))
    assert found == {("all_reduce", "model", "forward", "d2", 128 * 10 * 4)}


def attention(axes: dict[str, int]) -> estimate.Step:
    """Query, key, value and output of one attention layer over 16 tokens, heads split over `model`."""
    paths = {f"attention/{name}/kernel": ((32, 4, 8), (None, "model", None)) for name in ("query", "key", "value")}
    paths["attention/output/kernel"] = ((4, 8, 32), ("model", None, None))
    placements = {"embed/kernel": Placement("embed/kernel", (3, 32), (None, None), None)}
    placements |= {path: Placement(path, shape, spec, None) for path, (shape, spec) in paths.items()}
    heads = [LayerOutput(path.rpartition("/")[0], "EinsumDense", (64, 16, 4, 8), "float32") for path in paths][:3]
    outputs = [LayerOutput("embed", "Dense", (64, 16, 32), "float32"), *heads]
    outputs.append(LayerOutput("attention/output", "EinsumDense", (64, 16, 32), "float32"))
    return estimate.Step(placements, set(placements), outputs, axes, cases.IMAGE, dict.fromkeys(placements, 4))


def test_attention_sums_its_inputs_gradient_once_and_its_output_once() -> None:
    found = estimate.collectives(attention({"batch": 4, "model": 2}))
    moved = [(each.phase, each.origin, each.bytes) for each in found if each.axis == "model"]
    size = 16 * 16 * 32 * 4
    assert moved == [("backward", "attention/query", size), ("forward", "attention/output", size)]


def test_heads_split_the_work_of_attention() -> None:
    step = attention({"batch": 4, "model": 2})
    query = step.outputs[1]
    assert estimate.output_spec(step, query) == ("batch", None, "model", None)
    assert estimate.flops(step, query) == 3 * 2 * (32 * 4 * 8) * (64 * 16) // 8
    assert estimate.output_bytes(step, query, 4) == 64 * 16 * 4 * 8 * 4 // 8


def test_a_convolution_works_at_every_position_of_its_output_and_is_split_by_height() -> None:
    kernel = Placement("c/kernel", (3, 3, 8, 16), (None,) * 4, None)
    output = LayerOutput("c", "Conv2D", (8, 28, 28, 16), "float32")
    image = ("batch", "height", None, None)
    axes = {"batch": 2, "height": 2}
    step = estimate.Step({kernel.path: kernel}, {kernel.path}, [output], axes, image, {kernel.path: 4})
    assert estimate.output_spec(step, output) == ("batch", "height", None, None)
    assert estimate.flops(step, output) == 3 * 2 * (3 * 3 * 8 * 16) * (8 * 28 * 28) // 4
    (moved,) = estimate.collectives(step)
    assert (moved.axis, moved.bytes) == ("batch+height", 3 * 3 * 8 * 16 * 4)


def test_variables_without_gradients_are_not_reduced() -> None:
    step = cases.step(*cases.LAYOUTS["replicated"])
    frozen = estimate.Step(step.placements, {"d2/bias"}, step.outputs, step.axes, step.image, step.width)
    assert [each.origin for each in estimate.collectives(frozen)] == ["d2/bias"]


@pytest.mark.parametrize(
    ("kind", "device", "factor"),
    [("all_reduce", "gpu", 1.5), ("all_gather", "gpu", 0.75), ("all_gather", "cpu", 1.5), ("all_to_all", "cpu", 0.75)],
)
def test_ring_factors(kind: str, device: str, factor: float) -> None:
    assert ring_factor(kind, 4, device) == factor


def test_collectives_are_grouped_by_phase_kind_and_axis_with_their_time() -> None:
    found = [
        Collective("all_reduce", "batch", "backward", "a", 1, 6_000_000, counted=True),
        Collective("all_reduce", "batch", "backward", "b", 0, 2_000_000, counted=True),
        Collective("all_reduce", "model", "forward", "c", 1, 1_000_000, counted=True),
    ]
    forward, backward = traffic(found, {"batch": 4, "model": 2}, Rates("gpu", 2.0, 1.0, ""))
    assert (forward.phase, forward.axis, forward.seconds) == ("forward", "model", pytest.approx(0.5e-3))
    assert (backward.count, backward.bytes, backward.seconds) == (1, 8_000_000, pytest.approx(6e-3))
