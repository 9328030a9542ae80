"""The two bars of a plan's picture: the memory of a device, and the timeline of a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.plan import bars, picture
from runner.plan.base import MemoryPart, Rates, Traffic
from runner.plan.forecast import LINK_EFFICIENCY
from tests.plan import cases
from tests.plan.test_hardware import a_forecast

TRAFFIC = (
    Traffic("all_gather", "batch", "forward", 3, 10, 0.25),
    Traffic("all_reduce", "model", "forward", 3, 10, 0.5),
    Traffic("reduce_scatter", "batch", "backward", 3, 10, 0.25),
)
RED = (200, 30, 30)


def test_memory_is_that_of_the_forecast_else_what_the_plan_counts() -> None:
    parts = (MemoryPart("weights", 5, "counted"), MemoryPart("activations", 7, "estimated"))
    plan = cases.plan(forecast=a_forecast(memory=parts, capacity_bytes=20))
    assert [(segment.name, segment.amount) for segment in bars.memory_segments(plan)] == [
        ("weights", 5),
        ("activations", 7),
    ]
    assert bars.capacity_bytes(plan) == 20
    counted = cases.plan()
    assert [segment.name for segment in bars.memory_segments(counted)][:3] == [
        "weights",
        "gradients",
        "optimizer state",
    ]
    assert bars.capacity_bytes(counted) == 0


def test_the_virtual_devices_of_a_machine_share_its_memory() -> None:
    on_cpu = Rates("cpu", 1.0, 1.0, "")
    one = bars.capacity_bytes(cases.plan(rates=on_cpu, axes={"batch": 1}))
    assert bars.capacity_bytes(cases.plan(rates=on_cpu, axes={"batch": 8})) == one // 8
    # Two processes on two machines have the memory of both.
    assert bars.capacity_bytes(cases.plan(rates=on_cpu, axes={"batch": 8}, processes=2, machines=2)) == one * 2 // 8
    # Two on this machine, as with cluster=local, have no more than one.
    assert bars.capacity_bytes(cases.plan(rates=on_cpu, axes={"batch": 8}, processes=2)) == one // 8


def test_collectives_are_added_up_by_axis() -> None:
    links = bars.link_segments(cases.plan(traffic=TRAFFIC))
    assert [(segment.name, segment.amount) for segment in links] == [
        ("collectives over batch", 0.5),
        ("collectives over model", 0.5),
    ]


def test_compute_is_a_range_that_is_followed_by_the_devices_memory() -> None:
    assert bars.compute_range_s(cases.plan(compute_seconds=3.0)) == (3.0, 3.0)
    forecast = a_forecast(compute_seconds=(1.0, 4.0), memory_seconds=2.0)
    assert bars.compute_range_s(cases.plan(forecast=forecast)) == (3.0, 6.0)


def test_collectives_of_a_forecast_attain_a_share_of_the_links() -> None:
    plain = sum(segment.amount for segment in bars.link_segments(cases.plan(traffic=TRAFFIC)))
    attained = sum(
        segment.amount for segment in bars.link_segments(cases.plan(traffic=TRAFFIC, forecast=a_forecast()))
    )
    assert attained == pytest.approx(plain / LINK_EFFICIENCY)
    [told] = [segment.label for segment in bars.link_segments(cases.plan(traffic=TRAFFIC[:1], forecast=a_forecast()))]
    assert told == "373 ms at 67% of the links' rate"


def test_the_limit_is_a_red_line_at_its_share_of_the_bar(tmp_path: Path) -> None:
    parts = (MemoryPart("weights", 100, "counted"),)
    columns = []
    for capacity in (50, 200):
        plan = cases.plan(forecast=a_forecast(memory=parts, capacity_bytes=capacity), traffic=TRAFFIC)
        picture.draw(plan, tmp_path / "plan.png")
        pixels = np.asarray(Image.open(tmp_path / "plan.png").convert("RGB"))
        columns.append(np.flatnonzero((pixels == RED).all(axis=-1).any(axis=0)).mean())
    # What does not fit takes the whole width, with the limit at its half; else the limit is at the end.
    assert abs(columns[0] - pixels.shape[1] / 2) < 5
    assert columns[1] > pixels.shape[1] - 25
