"""Collectives read from XLA's text: its forms of replica groups, merged tensors, phases and origins."""

import pytest

from runner.engine.base import Collective
from runner.engine.jax.collectives import collectives
from runner.errors import EngineError
from runner.layout import Placement

AXES = {"batch": 4, "model": 2}
PLACED = {
    "d1/kernel": Placement("d1/kernel", (784, 512), (None, "model"), 0),
    "d1/bias": Placement("d1/bias", (512,), ("model",), 1),
    "d2/kernel": Placement("d2/kernel", (512, 10), ("model", "batch"), 2),
}
LAYERS = ["flatten", "d1", "d2"]


def read(*lines: str, looped: bool = False) -> list[Collective]:
    return collectives("\n".join(lines), AXES, PLACED, LAYERS, list(PLACED), {"batch"}, looped=looped)


def line(
    groups: str, kind: str = "all-reduce", shape: str = "f32[16,10]{1,0}", name: str = "jit(one)/jvp(d2)/dot"
) -> str:
    return f'  %c.1 = {shape} {kind}(%dot), channel_id=1, {groups}, to_apply=%add, metadata={{op_name="{name}"}}'


WIDENED = """
%wrapped (param_0: bf16[16,10]) -> f32[16,10] {
  %param_0 = bf16[16,10]{1,0} parameter(0)
  ROOT %convert.1 = f32[16,10]{1,0} convert(%param_0)
}

%rounded (param_1: f32[16,10]) -> f32[16,10] {
  %param_1 = f32[16,10]{1,0} parameter(0)
  %convert.2 = bf16[16,10]{1,0} convert(%param_1)
  ROOT %convert.3 = f32[16,10]{1,0} convert(%convert.2)
}

%doubled (param_2: f32[16,10]) -> f32[16,10] {
  %param_2 = f32[16,10]{1,0} parameter(0)
  ROOT %add.1 = f32[16,10]{1,0} add(%param_2, %param_2)
}
ENTRY %main (x: bf16[16,10], y: f32[16,10], z: f32[16,10]) -> f32[16,10] {
  %wrapped_convert = f32[16,10]{1,0} fusion(%x), kind=kLoop, calls=%wrapped
  %convert_fusion = f32[16,10]{1,0} fusion(%y), kind=kLoop, calls=%rounded
  %add_fusion = f32[16,10]{1,0} fusion(%z), kind=kLoop, calls=%doubled
"""


@pytest.mark.parametrize(
    ("operand", "reduction", "size"),
    [
        ("wrapped_convert", "add", 320),
        ("convert_fusion", "add", 320),
        ("add_fusion", "add", 640),
        ("add_fusion", "add.clone_promoted", 320),
    ],
)
def test_what_a_cpu_widens_counts_as_bfloat16(operand: str, reduction: str, size: int) -> None:
    told = f"channel_id=1, replica_groups={{}}, to_apply=%{reduction}"
    (found,) = read(*WIDENED.splitlines(), f"  %c.1 = f32[16,10]{{1,0}} all-reduce(%{operand}), {told}")
    assert found.bytes == size


@pytest.mark.parametrize(
    ("groups", "axis"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", "model"),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", "batch"),
        ("replica_groups={}", "batch+model"),
        ("replica_groups=[1,8]<=[8]", "batch+model"),
        ("replica_groups=[4,2]<=[8]", "model"),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", "batch"),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2,'axis_2'=1] {'axis_1'}", "model"),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", "batch"),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", "batch+model"),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(1)4}", "batch"),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(4)2}", "model"),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}", "model"),
        ("replica_groups={{0,2},{4,6},{1,3},{5,7}}", "batch"),  # two of its four
        ("replica_groups={{0,3},{1,2},{4,7},{5,6}}", "batch+model"),
        ("source_target_pairs={{0,2},{2,4},{4,6},{1,3},{3,5},{5,7}}", "batch"),
        ("source_target_pairs={{0,1},{2,3},{4,5},{6,7}}", "model"),
    ],
)
def test_every_form_of_groups_gives_its_mesh_axis(groups: str, axis: str) -> None:
    (found,) = read(line(groups))
    assert found == Collective("all_reduce", axis, "forward", "d2", 1, 640)


def test_groups_of_one_device_are_no_communication() -> None:
    assert read(line("replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}")) == []


def test_groups_that_are_not_understood_raise() -> None:
    with pytest.raises(EngineError):
        read(line("replica_groups=<new form>"))


def test_a_merged_all_reduce_is_counted_once_and_its_gradients_named() -> None:
    shape = "(f32[256,784]{1,0}, f32[256]{0}, bf16[3]{0})"
    name = "jit(many)/(transpose(jvp(d1))/dot_general:transpose(jvp(d1))/reduce_sum:transpose(jvp(d2))/mul)"
    found = read(line("replica_groups=[2,4]<=[4,2]T(1,0)", shape=shape, name=name))
    assert [(each.origin, each.count, each.bytes) for each in found] == [
        ("d1/kernel", 1, 256 * 784 * 4),
        ("d1/bias", 0, 1024),
        ("d2", 0, 6),
    ]
    assert {(each.phase, each.axis) for each in found} == {("backward", "batch")}


FORWARD, UPDATE = "jit(one)/jvp(d2)/dot", "jit(one)/update/reduce_sum"
CONVOLUTION = "jit(one)/transpose(jvp(d2))/conv_general_dilated"


@pytest.mark.parametrize(
    ("kind", "shape", "name", "phase", "origin", "size"),
    [
        # A gather counts what it gives, and a scatter what a device puts in.
        ("all-gather", "f32[10,256]{0,1}", FORWARD, "forward", "d2/kernel", 10240),
        ("all-gather-start", "(f32[64,10]{1,0}, f32[256,10]{1,0})", FORWARD, "forward", "d2/kernel", 10240),
        ("reduce-scatter", "f32[4]{0}", FORWARD, "forward", "d2", 64),
        # A gradient that is computed in another shape is named by its elements.
        ("all-reduce", "f32[5,2,256]{2,1,0}", CONVOLUTION, "backward", "d2/kernel", 10240),
        ("all-reduce", "f32[16,10]{1,0}", UPDATE, "update", "", 640),
    ],
)
def test_a_collective_has_its_phase_its_variable_and_its_bytes(
    kind: str, shape: str, name: str, phase: str, origin: str, size: int
) -> None:
    (found,) = read(line("replica_groups=[2,4]<=[4,2]T(1,0)", kind, shape, name))
    assert found == Collective(kind.removesuffix("-start").replace("-", "_"), "batch", phase, origin, 1, size)


def test_what_runs_once_a_call_is_left_out_of_a_looped_step() -> None:
    inside = line("replica_groups=[4,2]<=[8]")
    assert len(read("body {", inside, "}", "ENTRY %main {", inside, "}", looped=True)) == 1
    assert len(read("body {", inside, "}", "ENTRY %main {", inside, "}", looped=False)) == 2


def test_a_collective_in_a_scan_counts_once_a_turn() -> None:
    scan = 'backend_config={"known_trip_count":{"n":"3"}}'
    found = read(
        "%inner (p: f32[4]) -> f32[4] {",
        line("replica_groups={}"),
        "}",
        "%outer (p: f32[4]) -> f32[4] {",
        f"  %w = f32[4] while(%t), condition=%c, body=%inner, {scan}",
        line("replica_groups={}", kind="all-gather"),
        "}",
        "%steps (p: f32[4]) -> f32[4] {",  # the loop of a call, whose length is an input
        f"  %w = f32[4] while(%t), condition=%c, body=%outer, {scan.replace('3', '4')}",
        line("replica_groups={}", kind="all-to-all"),
        "}",
        "ENTRY %main (p: f32[4]) -> f32[4] {",
        "  ROOT %w = f32[4] while(%t), condition=%c, body=%steps",
        "}",
        looped=True,
    )
    assert [(each.kind, each.count, each.bytes) for each in found] == [
        ("all_reduce", 12, 12 * 640),
        ("all_gather", 4, 4 * 640),
        ("all_to_all", 1, 640),
    ]


def test_a_loop_of_a_program_for_tpus_counts_to_the_constant_of_its_condition() -> None:
    # Program of libtpu 0.0.42.1, shortened: no `known_trip_count`, but layouts with tiles and memory spaces.
    found = read(
        "%counts (p.1: (s32[], f32[4])) -> pred[] {",
        "  %constant.663 = s32[]{:T(128)} constant(6)",
        "  %p.1 = (s32[]{:T(128)}, f32[4]{0:T(128)S(1)}) parameter(0)",
        "  %turn = s32[]{:T(128)} get-tuple-element(%p.1), index=0",
        "  ROOT %lt.75 = pred[]{:T(512)} compare(%turn, %constant.663), direction=LT",
        "}",
        "%calls (p.2: (s32[], s32[])) -> pred[] {",
        "  %p.2 = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)",
        "  %call = s32[]{:T(128)} get-tuple-element(%p.2), index=0",
        "  %steps = s32[]{:T(128)} get-tuple-element(%p.2), index=1",
        "  ROOT %lt.76 = pred[]{:T(512)} compare(%call, %steps), direction=LT",
        "}",
        "%blocks (p: f32[4]) -> f32[4] {",
        line("replica_groups={}"),
        "}",
        "%step (p: f32[4]) -> f32[4] {",
        "  %w = (s32[]{:T(128)}, f32[4]{0}) while(%t), condition=%counts, body=%blocks",
        line("replica_groups={}", kind="all-gather"),
        "}",
        "ENTRY %main (p: f32[4]) -> f32[4] {",
        "  ROOT %w.2 = (s32[]{:T(128)}, f32[4]{0}) while(%t.2), condition=%calls, body=%step",
        "}",
        looped=True,
    )
    assert [(each.kind, each.count, each.bytes) for each in found] == [
        ("all_reduce", 6, 6 * 640),
        ("all_gather", 1, 640),
    ]


def test_a_reduce_scatter_of_a_program_for_tpus_is_an_all_reduce_in_a_fusion() -> None:
    # Program of libtpu 0.0.42.1, shortened.
    (found,) = read(
        "%all-reduce-scatter.clone.1 (input.2: f32[256,10]) -> f32[64,10] {",
        "  %input.2 = f32[256,10]{1,0:T(8,128)S(1)} parameter(0)",
        "  %all-reduce.80 = f32[256,10]{1,0:T(8,128)} all-reduce(%input.2), channel_id=174, "
        "replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, to_apply=%region_40.43.clone.1",
        "  ROOT %dynamic-slice.690 = f32[64,10]{1,0:T(8,128)S(1)} dynamic-slice(%all-reduce.80, %m, %c)",
        "}",
        "ENTRY %main (p: f32[256,10]) -> f32[64,10] {",
        "  ROOT %fusion.835 = f32[64,10]{1,0:T(8,128)S(1)} fusion(%p), kind=kCustom, "
        'calls=%all-reduce-scatter.clone.1, metadata={op_name="jit(many)/while/body/transpose(jvp(d2))/dot_general"}',
        "}",
    )
    assert (found.kind, found.axis, found.phase, found.bytes) == ("reduce_scatter", "batch", "backward", 4 * 256 * 10)
    assert found.origin == "d2/kernel"
