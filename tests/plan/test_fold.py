"""Equal blocks of a plan as one: which are equal, and what is said of them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from runner.plan import bars, rows
from runner.plan.base import VariablePlan
from runner.plan.files import markdown
from runner.plan.fold import folded
from runner.plan.picture import BARS, RIGHT, WIDTH, draw
from runner.plan.table import show
from runner.report import tables
from tests.plan import cases

KERNEL = cases.plan(1).variables[0]


def block(number: int, **changes: object) -> list[VariablePlan]:
    return [
        replace(KERNEL, path=f"encoder/block_{number}/norm1/gamma", shape=(64,), spec=(None,), bytes=256),
        replace(KERNEL, path=f"encoder/block_{number}/mlp/kernel", **changes),  # type: ignore[arg-type]
    ]


def names(variables: list[VariablePlan]) -> list[str]:
    return [group.name or group.variables[0].path for group in folded(variables)]


def test_twelve_equal_blocks_are_one_and_what_stands_around_them_stays() -> None:
    ends = [replace(KERNEL, path="patches/kernel"), replace(KERNEL, path="head/kernel")]
    variables = [ends[0], *(one for number in range(12) for one in block(number)), ends[1]]
    assert names(variables) == ["patches/kernel", "encoder/block_0 ... block_11 (x12)", "head/kernel"]
    inside = folded(variables)[1]
    assert [one.path for one in inside.variables] == ["norm1/gamma", "mlp/kernel"]
    assert sum(group.count * len(group.variables) for group in folded(variables)) == len(variables)


def test_a_block_that_lies_otherwise_or_is_not_there_ends_the_fold() -> None:
    whole = [block(number) for number in range(7)]
    whole[3] = block(3, bytes_per_device=1)
    assert names([one for each in whole for one in each])[0] == "encoder/block_0 ... block_2 (x3)"
    assert names([one for each in whole for one in each])[-1] == "encoder/block_4 ... block_6 (x3)"
    gap = [one for number in (0, 1, 3, 4) for one in block(number)]
    assert names(gap) == [one.path for one in gap], "no three follow each other"


def test_the_terminal_has_the_sum_of_the_blocks_and_one_of_them_and_plan_md_has_all() -> None:
    plan = cases.plan(variables=tuple(one for number in range(12) for one in block(number)))
    table = rows.variables(plan, fold=True)
    assert [row[0] for row in table.rows] == [
        "encoder/block_0 ... block_11 (x12)",
        "  norm1/gamma",
        "  mlp/kernel",
    ]
    assert table.rows[0][-3] == tables.size(12 * (256 + KERNEL.bytes))
    assert table.rows[2][-3] == tables.size(KERNEL.bytes)
    out = io.StringIO()
    show(plan, Console(file=out, width=80, highlight=False))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "block_7" not in out.getvalue()
    assert "encoder/block_7/mlp/kernel" in markdown(plan)


def test_a_folded_picture_is_a_fraction_of_the_whole(tmp_path: Path) -> None:
    equal = tuple(one for number in range(12) for one in block(number))
    other = tuple(replace(one, moved_bytes=index) for index, one in enumerate(equal))
    heights = {}
    for name, variables in (("folded", equal), ("whole", other)):
        plan = cases.plan(variables=variables)
        draw(plan, tmp_path / f"{name}.png")
        # Without the bars of memory and time, which both have.
        heights[name] = Image.open(tmp_path / f"{name}.png").height - bars.height(plan, WIDTH)
    assert heights["folded"] < heights["whole"] / 3


def test_the_bar_of_a_variable_is_as_long_as_its_bytes(tmp_path: Path) -> None:
    small = replace(KERNEL, path="b/kernel", bytes=KERNEL.bytes // 4, bytes_per_device=KERNEL.bytes_per_device // 4)
    plan = cases.plan(variables=(replace(KERNEL, path="a/kernel"), small))
    draw(plan, tmp_path / "plan.png")
    drawn = np.asarray(Image.open(tmp_path / "plan.png").convert("L"))
    # Only the table, which is below the bars of memory and time.
    drawn = drawn[bars.height(plan, WIDTH) :, BARS : RIGHT - 5]
    solid = [int(row.sum()) for row in drawn < 240 if row[0] and row[:20].all()]  # no line of text is that solid
    lengths = sorted({length for length in solid if solid.count(length) > 8})
    assert [round(length / lengths[0]) for length in lengths] == [1, 4]
