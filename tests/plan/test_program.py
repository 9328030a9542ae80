"""What DTensor's program tells is counted to the byte, and agrees with the estimate."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.engine.device_groups import device_groups
from runner.engine.dtensor.origins import Member, Origins
from runner.engine.dtensor.origins import phase as phase_of
from runner.layout import Placement
from tests import forks
from tests.nightly import nightly_except
from tests.plan import cases

ROOT = Path(__file__).parents[2]


def test_devices_of_a_group_differ_in_its_axes_only() -> None:
    groups = device_groups({"batch": 2, "one": 1, "height": 2, "width": 2})
    assert groups[("width",)] == {frozenset(pair) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))}
    assert groups[("batch",)] == {frozenset(pair) for pair in ((0, 4), (1, 5), (2, 6), (3, 7))}
    assert groups[("height", "width")] == {frozenset(range(4)), frozenset(range(4, 8))}
    assert groups[("batch", "height", "width")] == {frozenset(range(8))}
    assert len(groups) == 8
    assert groups[()] == {frozenset([device]) for device in range(8)}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("train_steps_aaa/mlp/d2/MatMul/DTensorAllReduceOp_96_1", "forward"),
        ("gradient_tape/train_steps_aaa/mlp/d1/MatMul/MatMul/DTensorAllReduceOp_96_1", "backward"),
        ("train_steps_aaa/AddN_2_968192538_2", "backward"),
        ("train_steps_aaa/update/global_norm/L2Loss/DTensorAllReduceOp_96_1", "update"),
    ],
)
def test_a_nodes_name_tells_thephase_of(name: str, phase: str) -> None:
    assert phase_of(name) == phase


def origins() -> Origins:
    shapes = {
        "block_0/norm/gamma": (64,),
        "block_0/norm/beta": (64,),
        "block_0/attention/query/kernel": (64, 4, 16),
        "block_0/attention/query/bias": (4, 16),
        "blocks/1/up/kernel": (48, 24),
        "shifted/beta": (32,),
        "shifted/moving_mean": (32,),
    }
    specs = {"block_0/attention/query/kernel": (None, "model", None), "block_0/attention/query/bias": ("model", None)}
    placed = {path: Placement(path, s, specs.get(path, (None,) * len(s)), None) for path, s in shapes.items()}
    names = {"blocks/1/up/kernel": "subclassed/block_1/dense_3/kernel:0"}
    trained = set(shapes) - {"shifted/moving_mean"}
    return Origins(placed, names, trained, {"batch": 4, "model": 2}, {"batch"})


@pytest.mark.parametrize(
    ("node", "shape", "axis", "origin"),
    [
        ("block_0.norm/mul_1/Sum", (1, 1, 64), "batch", "block_0/norm/gamma"),
        ("block_0.norm/add_1/Sum", (1, 1, 64), "batch", "block_0/norm/beta"),
        ("block_0.attention.query/einsum/Einsum_1", (64, 2, 16), "batch", "block_0/attention/query/kernel"),
        ("block_0.attention.query/add/Sum", (1, 1, 2, 16), "batch", "block_0/attention/query/bias"),
        ("block_0.attention.query/einsum/Einsum", (64, 2, 16), "model", "block_0/attention/query"),
        ("block_0.attention.query/einsum/Einsum_1", (32, 2, 16), "batch", "block_0/attention/query/kernel"),
        ("subclassed/block_1/dense_3/MatMul/MatMul_1", (48, 24), "batch", "blocks/1/up/kernel"),
        ("some_other_layer/Sum", (64,), "batch", ""),
    ],
)
def test_a_gradients_name_and_shape_tell_its_variable(
    node: str, shape: tuple[int, ...], axis: str, origin: str
) -> None:
    name = f"gradient_tape/train_steps_aaa/vit/{node}/DTensorAllReduceOp_96_1"
    assert origins().of(Member(name, shape), "backward", axis) == origin


def test_a_sum_that_no_trained_variable_asks_for_is_its_layers() -> None:
    name, found = "gradient_tape/train_steps_aaa/net/shifted/batchnorm/{}/Sum/DTensorAllReduceOp_96_1", origins()
    assert found.of(Member(name.format("add_1"), (1, 1, 1, 32)), "backward", "batch") == "shifted/beta"
    assert found.of(Member(name.format("mul"), (32,)), "backward", "batch") == "shifted"


def test_a_kernel_that_is_gathered_over_any_axis_is_named() -> None:
    member = Member("train_steps_aaa/net/blocks.1.up/gather/blocks.1.up.kernel/DTensorAllGatherOp_96_12", (48, 24))
    placed = {"blocks/1/up/kernel": Placement("blocks/1/up/kernel", (48, 24), (None, "model"), None)}
    found = Origins(placed, {}, set(placed), {"batch": 4, "model": 2}, {"batch"})
    assert found.of(member, "forward", "model") == "blocks/1/up/kernel"


def test_an_updates_scope_tells_its_variable() -> None:
    member = Member("train_steps_aaa/update/block_0.norm.beta/add_6/DTensorAllGatherOp_96_12", (64,))
    assert origins().of(member, "update", "model") == "block_0/norm/beta"


def work(name: str, *, combine: bool) -> dict[str, Any]:
    """Returns what a process with the case's mesh found."""
    axes, rules = cases.LAYOUTS[name]
    return run({"axes": axes, "rules": rules, "combine": combine})


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Returns what a process of its own found."""
    done = forks.run(
        [sys.executable, "-m", "tests.plan.worker", json.dumps(request)],
        library="tensorflow",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def by_origin(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    keys = ("phase", "kind", "axis", "origin", "count", "bytes")
    return sorted(tuple(each[key] for key in keys) for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(["column_row"], [*cases.LAYOUTS]))
def test_the_estimate_is_what_the_program_holds(name: str) -> None:
    got = work(name, combine=False)
    assert by_origin(got["counted"]) == by_origin(got["estimated"])
    check_program_and_arrays(got)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", nightly_except(["kernels_over_batch"], ["replicated", "kernels_over_batch", "column_row"])
)
def test_merged_all_reduces_carry_the_same_bytes_in_fewer_collectives(name: str) -> None:
    got = work(name, combine=True)
    named = [each for each in got["counted"] if each["origin"]]
    without_counts = [row[:4] + row[5:] for row in by_origin(named)]
    assert without_counts == [row[:4] + row[5:] for row in by_origin(got["estimated"])]
    padding = [each for each in got["counted"] if not each["origin"]]
    assert padding
    assert all(each["count"] == 0 and each["bytes"] < 4096 for each in padding)
    assert sum(each["count"] for each in got["counted"]) < len(got["estimated"])
    check_program_and_arrays(got)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("combine", [True, False])
def test_a_transformer_under_fsdp_is_planned_to_the_byte(combine: bool) -> None:
    got = run({"case": ["vit", "batch8", "fsdp"], "combine": combine})
    split = [
        path
        for path, sizes in got["held"].items()
        if path.endswith("mlp/up/kernel") and sizes == [32 * 64 * 4 // 8] * 8
    ]
    assert len(split) == 3, "the kernel and both slots lie in eighths"
    check_program_and_arrays(got)


def check_program_and_arrays(got: dict[str, Any]) -> None:
    """Checks the sums against the program's own nodes, and bytes a device against the arrays that lie there.

    An engine that only plans compiles for one device of the mesh, and must find what the one that trains finds.
    """
    assert got["read"] == got["counted"]
    assert sum(each["count"] for each in got["counted"]) == got["nodes"]["count"]
    assert sum(each["bytes"] for each in got["counted"]) == got["nodes"]["bytes"]
    assert got["planned"] == got["held"]
