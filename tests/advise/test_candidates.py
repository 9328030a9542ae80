"""Enumeration, pruning and ranking of candidates, as pure functions."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.plan.advise import candidates, command, ranking
from runner.plan.advise.candidates import Allowed, Candidate
from runner.plan.base import Basis, MemoryPart
from tests.plan.test_hardware import a_forecast

START = Candidate((("batch", 8),), "fsdp", False, "none", 1, "float32")
OPEN = Allowed(("batch", "model"), (), ("none", "full"), (1, 2), ("float32", "master"))


def planned(candidate: Candidate, *, memory: int, seconds: float, verdict: str = ranking.FITS) -> ranking.Planned:
    return ranking.Planned(
        candidate=candidate,
        verdict=verdict,
        peak_bytes=memory,
        step_seconds=(seconds, seconds),
        bound="compute",
        parts=(("compute", seconds),),
        memory=(("weights", memory),),
    )


@given(st.integers(1, 300), st.integers(0, 3))
def test_every_mesh_has_all_devices_and_none_occurs_twice(devices: int, others: int) -> None:
    axes = ["batch", "experts", "sequence", "model"][: others + 1]
    meshes = candidates.meshes(devices, axes)
    assert len(set(meshes)) == len(meshes)
    for mesh in meshes:
        assert math.prod(size for _, size in mesh) == devices
        assert mesh[0][0] == "batch"
        assert all(size > 1 for _, size in mesh[1:])


def test_64_devices_have_a_mesh_per_way_to_write_64_as_a_product_of_three() -> None:
    # Of six factors of 2: two dividers among eight places.
    assert len(candidates.meshes(64, ["batch", "sequence", "model"])) == math.comb(8, 2)


@pytest.mark.parametrize(
    ("sizes", "layouts"),
    [
        ({"batch": 8}, ["replicated", "fsdp"]),
        ({"batch": 1, "sequence": 8}, ["replicated"]),
        ({"batch": 4, "model": 2}, ["megatron", "fsdp_megatron"]),
        ({"batch": 1, "model": 8}, ["megatron"]),
        ({"batch": 2, "experts": 4}, ["experts"]),
        ({"batch": 2, "experts": 2, "model": 2}, ["megatron", "fsdp_megatron"]),
    ],
)
def test_a_layout_uses_every_axis_of_the_mesh(sizes: dict[str, int], layouts: list[str]) -> None:
    assert candidates.layouts_of(sizes) == layouts
    assert candidates.layouts_of(sizes, ["mine"]) == ["mine"]


def test_what_saves_memory_comes_after_all_that_saves_less() -> None:
    savers = candidates.savers(OPEN)
    assert len(set(savers)) == 8
    assert savers[0] == ("float32", "none", 1)
    for index, saver in enumerate(savers):
        for earlier in savers[:index]:
            assert not candidates.is_beyond(OPEN, earlier, saver)
    assert candidates.is_beyond(OPEN, ("master", "full", 2), ("float32", "full", 1))
    assert not candidates.is_beyond(OPEN, ("float32", "full", 1), ("float32", "none", 2))


def test_what_the_command_line_sets_stays_as_it_is() -> None:
    start = replace(START, remat="full")
    free = candidates.allowed(start, 24, "bfloat16", ["model", "engine"], ["batch"])
    assert free == Allowed(
        ("batch",), (), ("none", "dots_saveable", "full"), (1, 2, 4, 8), ("float32", "master", "bfloat16")
    )
    typed = ["layout", "model.remat", "trainer.accumulate_steps", "engine.state"]
    fixed = candidates.allowed(start, 24, "bfloat16", typed, ["batch"])
    assert fixed == Allowed(("batch",), ("fsdp",), (None,), (1,), ("float32",))


def test_a_candidate_is_written_as_overrides() -> None:
    assert START.overrides() == [
        "mesh=single",
        "mesh.axes={batch:8}",
        "layout=fsdp",
        "model.remat=none",
        "trainer.accumulate_steps=1",
        "engine.state=float32",
    ]


def test_candidates_that_fit_come_first_and_measured_before_predicted() -> None:
    slow = planned(START, memory=5, seconds=2.0)
    small = planned(START, memory=3, seconds=2.0004)
    large = planned(START, memory=9, seconds=1.0, verdict=ranking.TOO_LARGE)
    maybe = planned(START, memory=8, seconds=1.0, verdict=ranking.MAY_FIT)
    assert ranking.ranked([large, slow, maybe, small]) == [small, slow, maybe, large]
    saving = planned(replace(START, remat="dots_saveable"), memory=1, seconds=2.0)
    assert ranking.ranked([saving, small]) == [small, saving]
    fewer = planned(replace(START, accumulate=2), memory=5, seconds=2.0)
    more = planned(replace(START, accumulate=4), memory=3, seconds=2.0)
    assert ranking.ranked([more, fewer]) == [fewer, more]
    fast = planned(START, memory=10, seconds=0.1, verdict=ranking.TOO_LARGE)
    assert ranking.ranked([fast, large]) == [large, fast]


def test_the_front_has_what_no_candidate_beats_in_memory_and_time() -> None:
    first = planned(START, memory=1, seconds=9.0)
    beaten = planned(START, memory=2, seconds=9.5)
    second = planned(START, memory=3, seconds=4.0)
    equal = planned(START, memory=4, seconds=4.0)
    assert ranking.front([equal, second, beaten, first]) == [first, second]


def test_reasons_count_dropped_candidates_with_an_example() -> None:
    dropped = [ranking.Dropped(START, "lint", "a"), ranking.Dropped(START, "invalid", "b")]
    dropped.append(ranking.Dropped(START, "lint", "c"))
    assert ranking.reasons(dropped) == [("lint", 2, "a"), ("invalid", 1, "b")]


@pytest.mark.parametrize(
    ("source", "depth", "capacity", "verdict"),
    [
        ("counted", "arithmetic", 6, ranking.FITS),
        ("counted", "target", 5, ranking.TOO_LARGE),
        ("counted", "arithmetic", 5, ranking.TOO_LARGE),
        ("estimated", "target", 5, ranking.TOO_LARGE),
        ("estimated", "arithmetic", 5, ranking.MAY_FIT),
        ("estimated", "arithmetic", 3, ranking.TOO_LARGE),
    ],
)
def test_a_candidate_has_the_verdict_of_its_forecast(source: Basis, depth: str, capacity: int, verdict: str) -> None:
    forecast = a_forecast(
        memory=(MemoryPart("weights", 6, source),),
        capacity_bytes=capacity,
        depth=depth,
        step_seconds=(1.0, 4.0),
        compute_seconds=(1.0, 2.0),
        memory_seconds=0.5,
        link_seconds=0.67,
        bound="links",
        is_transformer=True,
    )
    entry = ranking.of_forecast(START, forecast)
    if verdict == ranking.TOO_LARGE and entry.state_fits:
        convolutions = replace(forecast, is_transformer=False)
        assert ranking.of_forecast(START, convolutions).verdict == ranking.MAY_FIT, "their estimates say less"
    assert entry.verdict == verdict
    # Less memory per example may do, unless the state is too large.
    assert entry.state_fits == (verdict == ranking.FITS or (source, depth) == ("estimated", "arithmetic"))
    assert (entry.peak_bytes, entry.seconds, entry.bound) == (6, 2.0, "links")
    assert entry.parts == (("compute", 1.5), ("memory", 0.5), ("links", 1.0))


def test_the_advised_command_leaves_out_what_the_config_has_anyway() -> None:
    assert command._changing(START, START, ["model=gpt"]) == ["mesh.axes={batch:8}", "layout=fsdp"]
    other = replace(START, remat="full", accumulate=2)
    assert command._changing(other, START, ["experiment=mine"]) == [
        *("mesh=single", "mesh.axes={batch:8}", "layout=fsdp", "model.remat=full", "trainer.accumulate_steps=2")
    ]
