"""What a plan names as the smallest change that fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.schema import RunConfig
from runner.plan import changes
from runner.plan.base import Change, MemoryPart
from runner.plan.checks.composed import convert
from runner.task.base import DataSpec
from tests.config.test_config import composed
from tests.plan.test_hardware import GIB, GPT, a_forecast, planned


def config(*words: str) -> RunConfig:
    return convert(composed("hardware=h100", "mesh=batch8", "dataset.batch_size=32", *GPT, *words))


def names(config: RunConfig, *overrides: str, keeps_layout: bool = True) -> list[str]:
    return [name for name, _ in changes.candidates(config, overrides, keeps_layout=keeps_layout)]


def test_changes_that_compute_the_same_are_tried_first() -> None:
    steps = [f"trainer.accumulate_steps={count}" for count in (2, 4, 8)]
    half = "dataset.batch_size=16"
    assert names(config("model.remat=none")) == ["model.remat=full", *steps, half, "layout=fsdp"]
    assert names(config("trainer.accumulate_steps=2")) == [*steps[1:], half, "layout=fsdp"]
    assert names(config("layout=fsdp")) == [*steps, half]
    assert names(config(), "layout.sequence=null") == [*steps, half]
    assert names(config(), keeps_layout=False) == ["layout=fsdp"]


def test_an_invalid_change_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RunConfig] = []
    monkeypatch.setattr(changes, "make_engine", lambda config, *_, **__: made.append(config))
    spec = DataSpec({}, None)  # type: ignore[arg-type]
    (_, eighths), *_ = [each for each in changes.candidates(config(), (), keeps_layout=True) if each[0].endswith("=8")]
    assert changes._peak(eighths, spec) is None
    assert made == [], "8 microbatches of 4 examples on 8 devices"


@pytest.mark.parametrize(
    ("capacity", "depth", "found"),
    [
        (60, "arithmetic", (Change("trainer.accumulate_steps=4", 55 * GIB),)),
        # The target's compiler needs 70 GiB where arithmetic says 60.
        (66, "target", (Change("trainer.accumulate_steps=4", 65 * GIB),)),
        (50, "arithmetic", ()),
        # The state alone needs 30 GiB.
        (29, "arithmetic", (Change("layout=fsdp", 20 * GIB),)),
    ],
)
def test_the_first_change_that_leaves_room_is_named(
    monkeypatch: pytest.MonkeyPatch, capacity: int, depth: str, found: tuple[Change, ...]
) -> None:
    def peak(changed: RunConfig, data: DataSpec) -> int | None:
        del data
        if changed.layout.rules:
            return 20 * GIB if capacity == 29 else 90 * GIB
        peaks = {1: None, 2: 65 * GIB, 4: 55 * GIB, 8: 54 * GIB}
        return peaks[changed.trainer.accumulate_steps]

    monkeypatch.setattr(changes, "_peak", peak)
    arithmetic = 60 if depth == "target" else 70
    parts = [
        MemoryPart("weights", 30 * GIB, "counted"),
        MemoryPart("activations", (arithmetic - 30) * GIB, "estimated"),
    ]
    forecast = a_forecast(capacity_bytes=capacity * GIB, depth=depth)
    spec = DataSpec({}, None)  # type: ignore[arg-type]
    assert changes.smallest(config(), spec, forecast, parts, ()) == found


@pytest.mark.nightly
def test_a_plan_with_the_change_has_the_peak_that_the_change_promised(tmp_path: Path) -> None:
    words = ("mesh=batch8", "hardware=h100", "plan.compiler=arithmetic", "dataset.batch_size=32", "model.remat=none")
    whole = planned(tmp_path / "whole", *words)["forecast"]
    peak = sum(part["bytes"] for part in whole["memory"])
    short = (*words, f"hardware.memory_gib={0.9 * peak / GIB}")
    (change,) = planned(tmp_path / "short", *short)["forecast"]["changes"]
    changed = planned(tmp_path / "changed", *short, change["override"])["forecast"]
    assert sum(part["bytes"] for part in changed["memory"]) == change["peak_bytes"] <= 0.9 * peak
