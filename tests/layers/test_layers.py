"""Every layer of keras.layers is in the table, computes what stock Keras computes, or is refused in a line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.layers import page
from tests.layers.drive import run
from tests.layers.setup import MESHES
from tests.layers.table import ALL_CASES, NAMED, PARTS, SAMPLES, by_name, cases, on_mesh
from tests.layers.worker import EQUAL, REFUSED, WRONG, Outcome

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_every_class_of_the_library_has_cases_or_is_named() -> None:
    command = [sys.executable, "-m", "tests.layers.worker", "names"]
    done = forks.run(command, library="jax", cwd=ROOT, check=True, timeout=120)
    classes = set(json.loads(done.stdout))
    held = {case.layer for case in cases() if "." not in case.layer}
    assert classes == held | set(NAMED)
    assert not held & set(NAMED)


def test_no_case_is_there_twice() -> None:
    assert len(by_name()) == len(cases())


@pytest.mark.nightly
def test_a_layer_on_a_mesh_of_two_axes_equals_stock_keras_on_one_device() -> None:
    found = list(run(lambda case, mesh: case.name in SAMPLES and mesh == ALL_CASES))
    assert {outcome.name for outcome in found} == set(SAMPLES)
    assert [outcome for outcome in found if outcome.kind != EQUAL] == []


@pytest.mark.nightly
def test_a_case_of_every_twelfth_layer_is_as_the_page_says() -> None:
    # All cases on all their meshes are a command of many minutes: `python -m tests.layers --write`.
    first = {case.name for case in list({case.layer: case for case in reversed(cases())}.values())[::12]}
    found = list(run(lambda case, mesh: case.name in first and mesh == ALL_CASES))
    assert {outcome.name for outcome in found} == first
    assert [outcome for outcome in found if outcome.kind == WRONG] == []
    text, known = page.PAGE.read_text(), by_name()
    told, partly = page.excepted(text), page.not_run(text)
    for outcome in found:
        case = known[outcome.name]
        if case.layer in partly:
            continue
        assert (outcome.kind != EQUAL) == ((case.layer, case.told) in told), outcome


def outcomes_of(**told: tuple[str, str]) -> list[Outcome]:
    """Returns outcomes that are equal, but for the layers named."""
    return [Outcome(case.name, mesh, *told.get(case.layer, (EQUAL, ""))) for mesh in MESHES for case in on_mesh(mesh)]


def test_the_page_tells_each_layer_s_count_and_each_reason_once() -> None:
    line = "model._target_=tests.layers.on_jax.build: layer layer3 (Dot) has no rule; use Dense"
    found = outcomes_of(Dot=(REFUSED, line))
    text = page.rendered(found)
    assert "`Dot` (0 of 6)" in text
    assert "\n- the layer (Dot) has no rule; use Dense\n  - `Dot`: all cases\n" in text
    assert text.count("has no rule") == 1
    assert page.excepted(text) == {("Dot", case.told) for case in cases() if case.layer == "Dot"}
    assert "`Subtract` (2)" in text


def test_a_long_error_is_shortened_and_keeps_its_fix() -> None:
    problem = "the layer has no rule for `Conv2D` of " + "Tensor " * 60
    assert page.shortened("the layer has no rule; use Dense") == "the layer has no rule; use Dense"
    short = page.shortened(f"{problem}; use Dense")
    assert short.startswith("the layer has no rule for `Conv2D` of Tensor")
    assert short.endswith(" ...; use Dense")
    assert len(short) <= 205
    assert page.shortened("x " * 80 + "`" + "code " * 30 + "`").count("`") == 0


def test_lines_of_the_page_are_short() -> None:
    lines = [line for line in page.PAGE.read_text().splitlines() if line.lstrip().startswith("- ")]
    assert [line for line in lines if len(line) > 270] == []


def test_the_page_that_is_committed_has_the_table_s_layers_and_counts() -> None:
    text = page.PAGE.read_text()
    for part in PARTS.values():
        for layer in dict.fromkeys(case.layer for case in part):
            count = sum(case.layer == layer for case in cases())
            assert re.search(rf"`{layer}` \(([\w, ]+ of )?{count}\)", text), layer
    assert "WRONG" not in text
