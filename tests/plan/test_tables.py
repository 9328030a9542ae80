"""The plan's words: tables that fit, files that say the same."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from runner import console
from runner.config.schema import MeshConfig, PlanConfig
from runner.engine.base import Collective, ProgramCost
from runner.figures import of_shard
from runner.plan import rows
from runner.plan.base import Rates, Traffic
from runner.plan.files import NAMES, markdown, write_files
from runner.plan.rates import rates, traffic, utilization
from runner.plan.table import WIDTH, show
from tests.plan import cases


@pytest.mark.parametrize(
    ("count", "shown"), [(40, "40 B"), (1000, "0.98 KiB"), (5120, "5.00 KiB"), (401408, "392 KiB"), (0, "0 B")]
)
def test_bytes_are_shown_with_three_digits(count: int, shown: str) -> None:
    assert console.size(count) == shown


@pytest.mark.parametrize("width", [WIDTH, 160])
def test_the_tables_fit_the_terminal_and_lose_nothing(width: int) -> None:
    out = io.StringIO()
    show(cases.plan(2), Console(file=out, width=width, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for word in ("768x12x64", "float32", "[-, model, -]", "2.25 MiB", "1.12 MiB", "counted", "all_reduce"):
        assert word in out.getvalue(), word
    column = re.search(r"^variable +", out.getvalue(), re.MULTILINE)
    assert column is not None
    squeezed = "".join(line[: len(column[0])].strip() for line in lines)
    assert "encoder/block_1/attention/query_projection/kernel" in squeezed


def test_the_sum_of_the_collectives_is_the_sum_of_its_rows() -> None:
    table = rows.traffic(cases.plan())
    assert table.rows[-1][:1] + table.rows[-1][3:6] == ("all", "3", "1.46 KiB", "3 ms")


def test_what_the_compiler_counts_is_a_table_of_its_own() -> None:
    cost = ProgramCost(2048, 1600, 1024, 3 << 20, 5e6, 4096.0)
    assert [row[1] for row in rows.program(cases.plan(program=cost)).rows] == [
        "2.00 KiB",
        "576 B",
        "3.00 MiB",
        "5 MFLOP",
        "4.00 KiB",
    ]
    assert "counted by its compiler" in markdown(cases.plan(program=cost))
    assert "counted by its compiler" not in markdown(cases.plan())


def test_utilization_is_the_share_of_a_stated_peak() -> None:
    measures = cases.plan().metrics()
    assert measures["plan/flops_per_device"] == 7
    assert utilization(PlanConfig(gflops=2e-7), measures, 10.0) == pytest.approx(0.35)
    assert utilization(PlanConfig(), measures, 10.0) is None, "the default rate is a guess at the device"
    assert utilization(PlanConfig(gflops=1.0), {}, 10.0) is None, "a run without a plan"


def test_a_plan_without_collectives_says_so() -> None:
    assert "a step communicates nothing" in rows.notes(cases.plan(traffic=()))


def test_markdown_holds_every_variable_with_its_rule() -> None:
    text = markdown(cases.plan(30))
    assert len(re.findall(r"/query_projection/kernel +768x12x64", text)) == 30
    assert "rules[0]" in text


def test_the_files_are_json_markdown_and_a_picture_of_the_largest_variables(tmp_path: Path) -> None:
    files = write_files(cases.plan(60), tmp_path)
    assert [file.name for file in files] == list(NAMES)
    assert len(json.loads(files[0].read_text())["variables"]) == 60
    png = files[2].read_bytes()
    assert png.startswith(b"\x89PNG")


def test_parts_at_other_coordinates_have_other_colors() -> None:
    axes = {"batch": 2, "height": 2, "width": 2}
    places = [{"batch": b, "height": h, "width": w} for b in range(2) for h in range(2) for w in range(2)]
    assert len({of_shard(axes, place) for place in places}) == 8


def test_virtual_devices_share_the_rates_of_their_machine() -> None:
    one = rates(PlanConfig(), MeshConfig(axes={"batch": 1}))
    eight = rates(PlanConfig(), MeshConfig(axes={"batch": 4, "model": 2}))
    assert eight.gflops == one.gflops / 8
    assert eight.bandwidth_gb_s == one.bandwidth_gb_s / 8
    assert "shared by 8 virtual devices" in eight.note


def test_a_rate_of_the_config_is_taken_as_it_is() -> None:
    given = rates(PlanConfig(bandwidth_gb_s=25.0), MeshConfig(axes={"batch": 8}, device="gpu"))
    assert (given.bandwidth_gb_s, given.gflops) == (25.0, 19_500.0)
    assert given.note.startswith("plan.bandwidth_gb_s; else")


CROSSING = {
    "traffic": (
        Traffic("all_reduce", "model", "forward", 2, 1000, 0.001),
        Traffic("all_reduce", "batch", "backward", 1, 500, 0.002, crosses=True),
    ),
    "rates": Rates("gpu", 300.0, 19500.0, "an A100's data sheet", 25.0),
    "processes": 2,
    "crossing": ("batch",),
}


def test_what_crosses_processes_takes_the_networks_rate() -> None:
    at = Rates("gpu", 300.0, 19500.0, "", 25.0)
    moved = [Collective("all_reduce", axis, "backward", "", 1, 10**9) for axis in ("batch", "model", "batch+model")]
    found = {each.axis: each for each in traffic(moved, {"batch": 4, "model": 2}, at, ["batch"])}
    assert {axis: each.crosses for axis, each in found.items()} == {"batch": True, "model": False, "batch+model": True}
    assert found["batch"].seconds == pytest.approx(1.5 / 25)
    assert found["model"].seconds == pytest.approx(1.0 / 300)
    assert found["batch+model"].seconds == pytest.approx(1.75 / 25)


def test_several_processes_have_a_slower_link_and_one_has_none() -> None:
    mesh = MeshConfig(axes={"batch": 8}, device="gpu")
    assert rates(PlanConfig(), mesh).network_gb_s is None
    two = rates(PlanConfig(), mesh, 2)
    assert two.network_gb_s is not None
    assert two.network_gb_s < two.bandwidth_gb_s
    given = rates(PlanConfig(network_gb_s=50.0), mesh, 2)
    assert (given.network_gb_s, given.bandwidth_gb_s) == (50.0, two.bandwidth_gb_s)
    assert given.note.endswith("between processes plan.network_gb_s")
    assert rates(PlanConfig(network_gb_s=50.0), MeshConfig(axes={"batch": 8}), 4).network_gb_s == 50.0


def test_a_plan_of_several_processes_says_which_axes_cross_and_marks_their_collectives(tmp_path: Path) -> None:
    plan = cases.plan(**CROSSING)
    assert [row[3] for row in rows.traffic(plan).rows] == ["inside one", "between processes", ""]
    assert "2 processes of 4 devices: batch crosses them; model is inside one" in rows.notes(plan)
    assert "between processes 25 GB/s" in rows.notes(plan)[0]
    assert "(gpu, 2 processes)" in rows.title(plan)
    write_files(plan, tmp_path)
    written = json.loads((tmp_path / "plan.json").read_text())
    assert (written["processes"], written["crossing"]) == (2, ["batch"])
    assert [each["crosses"] for each in written["traffic"]] == [False, True]
    assert re.search("backward +all_reduce +batch +between processes +1", (tmp_path / "plan.md").read_text())
    assert "processes" not in markdown(cases.plan())
