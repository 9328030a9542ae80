"""HSDP: an axis `replica` shards the examples, and FSDP shards over as many devices as divide the weights."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.schema import LayoutConfig, RuleConfig
from runner.layout import hybrid, mesh, resolve
from runner.layout.axes import axis_size, batch_axis, data_axes
from runner.plan import rows
from tests import forks
from tests.plan import cases
from tests.plan.test_hardware import a_forecast

GIB = 1 << 30
FSDP = LayoutConfig(rules=[RuleConfig(match=".*", shard="batch", min_elements=1024)])
SHAPES = {"d1/kernel": (1024, 4096), "d2/kernel": (4096, 1024), "norm/scale": (1024,), "d2/bias": (10,)}


def split(axes: dict[str, int], layout: LayoutConfig = FSDP) -> hybrid.Split | None:
    return hybrid.split(layout, resolve(layout, SHAPES, axes), axes)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"batch": 96}, {"replica": 3, "batch": 32}),
        ({"batch": 24}, {"replica": 3, "batch": 8}),
        ({"batch": 48, "model": 2}, {"replica": 3, "batch": 16, "model": 2}),
        # Replicas that there are already stay.
        ({"replica": 2, "batch": 12}, {"replica": 6, "batch": 4}),
        ({"batch": 64}, None),
        # No factor of 7 divides anything, so no other mesh is better, and the plan says why nothing is sharded.
        ({"batch": 7}, {}),
    ],
)
def test_fsdp_shards_over_the_largest_factor_that_divides(
    axes: dict[str, int], expected: dict[str, int] | None
) -> None:
    found = split(axes)
    assert (None if found is None else found.axes) == expected
    # The axes' order numbers the devices: replicas are on other nodes.
    assert found is None or list(found.axes) == list(expected or {})


def test_a_layout_without_fsdp_and_inputs_of_the_user_s_are_left_alone() -> None:
    assert split({"batch": 96}, LayoutConfig()) is None
    assert split({"batch": 96}, replace(FSDP, inputs={"x": ["batch", None]})) is None


def test_the_reason_comes_before_the_verdict() -> None:
    found = split({"batch": 96})
    assert found is not None
    forecast = a_forecast(capacity_bytes=GIB, undivided=found.reason, split_axes=found.axes)
    first, second, *_ = rows.verdict(cases.plan(forecast=forecast))
    assert first == (
        "axis 'batch' of size 96 divides no dim of 3 of the 3 variables that it is to shard, so each device stores "
        "them whole; shard over fewer with replicas: 'mesh.axes={replica:3,batch:32}'"
    )
    assert second.startswith("does not fit: 70.0 GiB of 1.00 GiB")
    found = split({"batch": 7})
    assert found is not None
    forecast = a_forecast(capacity_bytes=GIB, undivided=found.reason, split_axes=found.axes)
    assert rows.verdict(cases.plan(forecast=forecast))[0].endswith("stores them whole; use another number of devices")


def test_both_axes_shard_the_examples() -> None:
    axes = {"replica": 3, "batch": 2, "model": 2}
    axis = batch_axis(LayoutConfig(), axes)
    assert axis_size(axes, axis) == 6
    assert data_axes(LayoutConfig(), axes) == {"replica", "batch"}
    # Each of three processes has the devices of one replica.
    assert [mesh.columns(axes, str(axis), process, 3) for process in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert mesh.columns({"batch": 2, "replica": 2}, "replica+batch", 0, 2) == [0, 2]


@pytest.mark.nightly
def test_a_mesh_with_replicas_computes_what_one_device_does(tmp_path: Path) -> None:
    words = ("engine=jax", "dataset=digits", "model.hidden=[96]", "layout=fsdp", "dataset.batch_size=48")
    words = (*words, "dataset.eval_batch_size=48", "mesh.axes={replica:3,batch:2}", "mesh.cpu_devices=6")
    done = forks.python("-m", "runner.verify", *words, f"hydra.run.dir={tmp_path / 'run'}", folder=tmp_path)
    assert "verified: 20 steps on replica=3 batch=2 match one device" in done.stdout
