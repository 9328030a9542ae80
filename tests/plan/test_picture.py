"""The picture of a plan: the memory of a device, the timeline of a step, and the variables, equal ones as one."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib import image
from rich.console import Console

from runner import console
from runner.plan import picture, rows
from runner.plan.base import MemoryPart, Rates, Traffic, VariablePlan
from runner.plan.files import markdown
from runner.plan.forecast import LINK_EFFICIENCY
from runner.plan.table import show
from tests.plan import cases
from tests.plan.test_hardware import a_forecast

TRAFFIC = (
    Traffic("all_gather", "batch", "forward", 3, 10, 0.25),
    Traffic("all_reduce", "model", "forward", 3, 10, 0.5),
    Traffic("reduce_scatter", "batch", "backward", 3, 10, 0.25),
)
KERNEL = cases.plan(1).variables[0]


def block(number: int, **changes: object) -> list[VariablePlan]:
    return [
        replace(KERNEL, path=f"encoder/block_{number}/norm1/gamma", shape=(64,), spec=(None,), bytes=256),
        replace(KERNEL, path=f"encoder/block_{number}/mlp/kernel", **changes),  # type: ignore[arg-type]
    ]


def test_memory_is_that_of_the_forecast_else_what_the_plan_counts() -> None:
    parts = (MemoryPart("weights", 5 << 30, "counted"), MemoryPart("activations", 7 << 30, "estimated"))
    bars = picture.memory(cases.plan(forecast=a_forecast(memory=parts, capacity_bytes=20 << 30)))
    assert bars.rows == {"": [("weights", 5.0), ("activations", 7.0)]}
    assert (bars.heading, bars.limit) == ("memory of one device: 12.0 GiB of 20.0 GiB (red line)", 20.0)
    counted = picture.memory(cases.plan())
    assert [name for name, _ in counted.rows[""]][:3] == ["weights", "gradients", "optimizer state"]
    assert counted.limit == 0.0


def test_the_virtual_devices_of_a_machine_share_its_memory() -> None:
    on_cpu = Rates("cpu", 1.0, 1.0, "")
    one = picture.capacity_bytes(cases.plan(rates=on_cpu, axes={"batch": 1}))
    assert picture.capacity_bytes(cases.plan(rates=on_cpu, axes={"batch": 8})) == one // 8
    # Two processes on two machines have the memory of both.
    two = picture.capacity_bytes(cases.plan(rates=on_cpu, axes={"batch": 8}, processes=2, machines=2))
    assert two == one * 2 // 8
    # Two on this machine, as with cluster=local, have no more than one.
    assert picture.capacity_bytes(cases.plan(rates=on_cpu, axes={"batch": 8}, processes=2)) == one // 8


def test_collectives_are_added_up_by_axis_and_those_of_a_forecast_attain_a_share_of_the_links() -> None:
    plain = picture.link_seconds(cases.plan(traffic=TRAFFIC))
    assert plain == {"collectives over batch": 0.5, "collectives over model": 0.5}
    plan = cases.plan(traffic=TRAFFIC[:1], forecast=a_forecast())
    assert sum(picture.link_seconds(plan).values()) == pytest.approx(0.25 / LINK_EFFICIENCY)
    words, _ = picture.timeline(plan).parts["collectives over batch"]
    assert words.endswith("373 ms at 67% of the links' rate")


def test_compute_is_a_range_that_is_followed_by_the_devices_memory() -> None:
    assert picture.compute_range_s(cases.plan(compute_seconds=3.0)) == (3.0, 3.0)
    forecast = a_forecast(compute_seconds=(1.0, 4.0), memory_seconds=2.0)
    assert picture.compute_range_s(cases.plan(forecast=forecast)) == (3.0, 6.0)


def test_equal_blocks_are_one_and_what_differs_stays() -> None:
    ends = [replace(KERNEL, path="patches/kernel"), replace(KERNEL, path="head/kernel")]
    variables = [ends[0], *(one for number in range(12) for one in block(number)), ends[1]]
    joined = rows.alike_joined(variables)
    assert [one.path for one in joined] == [
        "patches/kernel",
        "encoder/block_*/norm1/gamma (x12)",
        "encoder/block_*/mlp/kernel (x12)",
        "head/kernel",
    ]
    assert sum(one.bytes for one in joined) == sum(one.bytes for one in variables)
    two = [one for number in range(2) for one in block(number)]
    assert {one.path for one in rows.alike_joined(two)} == {one.path for one in two}, "two are read one by one"
    three = [one for number in range(4) for one in block(number, bytes_per_device=int(number == 3))]
    assert [one.path for one in rows.alike_joined(three)][1:] == [
        "encoder/block_*/mlp/kernel (x3)",
        "encoder/block_3/mlp/kernel",
    ]


def test_the_terminal_has_the_sum_of_the_blocks_and_plan_md_has_all() -> None:
    plan = cases.plan(variables=tuple(one for number in range(12) for one in block(number)))
    table = rows.variables(plan, join=True)
    assert table.rows[0][-3] == console.size(12 * 256)
    assert table.rows[1][-3] == console.size(12 * KERNEL.bytes)
    out = io.StringIO()
    show(plan, Console(file=out, width=80, highlight=False))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "block_7" not in out.getvalue()
    assert "encoder/block_7/mlp/kernel" in markdown(plan)


@pytest.mark.nightly
def test_any_plan_is_drawn_however_long_its_words_are(tmp_path: Path) -> None:
    axes = {"replica_groups": 16, "model_parallel": 16, "image_height": 16, "image_width": 16}
    long = "encoder_of_a_deep_model/" * 4 + "attention/query_projection_with_a_name/$x^{$"
    spec = ("replica_groups", "model_parallel", "image_height")
    held = tuple(replace(each, path=f"{long}_{i}", spec=spec) for i, each in enumerate(cases.plan(2).variables))
    choices = dict.fromkeys(("model", "layout", "optimizer", "dataset"), "a_name_that_somebody_chose_to_be_long")
    plans = {
        "long": cases.plan(axes=axes, variables=held, choices=choices, forecast=a_forecast(capacity_bytes=1 << 30)),
        "many": cases.plan(60, variables=tuple(replace(KERNEL, path=f"k{i}", bytes=i) for i in range(60))),
        "empty": cases.plan(axes={"batch": 1}, variables=(), traffic=(), totals={}, compute_seconds=0.0),
    }
    heights = {}
    for name, plan in plans.items():
        picture.draw(plan, tmp_path / f"{name}.png")
        pixels = image.imread(tmp_path / f"{name}.png")
        heights[name], width = pixels.shape[:2]
        assert width < 1600
        assert pixels[:8, :, :3].min() == pixels[-8:, :, :3].min() == 1.0, "nothing is cut off"
    assert heights["empty"] < heights["long"] < heights["many"] < 3500, "48 rows, whatever number of variables"
