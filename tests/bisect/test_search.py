"""The replays of a search: which steps they compute, and how many states they record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.bisect import cause, search
from runner.bisect.children import Replay
from runner.training.checkpoint.runs import SavedRun


class Replays:
    """Answers replays as the command does.

    Attributes:
      changes: the first state, and the first loss, that differ or are NaN.
      end: the last step of the run.
      options: of each replay.
      states: number of states that each has recorded.
    """

    def __init__(self, state: int, loss: int | None = None, end: int = 1000) -> None:
        self.changes = (state, state + 1 if loss is None else loss)
        self.end = end
        self.options: list[dict[str, str]] = []
        self.states: list[int] = []

    def __call__(self, run: SavedRun, folder: Path, options: Sequence[str]) -> Replay:
        typed = dict(option.split("=") for option in options)
        self.options.append(typed)
        state, loss = self.changes
        start = int(typed["start"])
        last = self.end if typed["step"] == "null" else int(typed["step"])
        assert start < last
        if "stop_at_nan" in typed:
            last = min(last, loss)
        recorded = {last}
        if "every" in typed:
            recorded |= set(range(int(typed.get("record_from", start)), last + 1, int(typed["every"])))
        self.states.append(len(recorded))
        is_other = run.id == "other"
        states = []
        for step in sorted(recorded):
            digests = {"w": str(is_other and step >= state)}
            states.append({"step": step, "digests": digests, "sketches": {}, "not_finite": ["w"] * (step >= state)})
        metrics = {str(step): {"loss": float("nan") if step >= loss else 1.0} for step in range(start + 1, last + 1)}
        return Replay({"step": last, "states": states, "metrics": metrics}, folder)


def side(name: str) -> Any:
    run = SavedRun(Path(name), {"run": name})
    return cast(Any, search._Side(run, [], cast(Any, SimpleNamespace(about={"config": {}}, step=5)), cast(Any, None)))


def result(step: int, *_: object) -> Any:
    return SimpleNamespace(content=lambda: {"step": step}, lines=lambda: iter([f"step {step}"]))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Returns a function that searches between two bounds, and returns the result's line."""
    monkeypatch.setattr(cause, "of_difference", result)
    monkeypatch.setattr(cause, "of_nan", result)

    def search_between(low: int, high: int | None, replays: Replays, *, nan: bool = False) -> list[str]:
        monkeypatch.setattr(search, "replay", replays)
        monkeypatch.setattr(search, "_bounds", lambda *_: (low, high))
        monkeypatch.setattr(search, "_nan_bounds", lambda *_: (low, high))
        if nan:
            return list(search._nan(side("one"), tmp_path))
        return list(search._part(side("one"), side("other"), tmp_path, 0.0))

    return search_between


@pytest.mark.parametrize("state", [101, 777, 4096, 10_000, 10_100])
def test_a_difference_in_a_long_range_takes_few_records(found: Any, state: int) -> None:
    replays = Replays(state)
    assert f"step {state}" in found(100, 10_100, replays)
    # Two times the root of the range, for each run, and the step itself.
    assert sum(replays.states) < 2 * (100 + 100 + 5)


def test_runs_that_begin_with_different_values_need_no_second_pass(found: Any) -> None:
    replays = Replays(100)
    assert "step 100" in found(100, 10_100, replays)
    assert [typed["step"] for typed in replays.options] == ["10100", "10100", "101", "101"]


def test_a_short_range_is_recorded_step_by_step_once(found: Any) -> None:
    replays = Replays(130)
    assert "step 130" in found(100, 160, replays)
    assert [typed["step"] for typed in replays.options] == ["160", "160", "130", "130"]


@pytest.mark.parametrize(("state", "loss"), [(777, 778), (777, 5000), (780, 777), (10_100, 10_101)])
def test_a_nan_in_a_long_range_takes_few_records(found: Any, state: int, loss: int) -> None:
    replays = Replays(state, loss)
    assert f"step {min(state, loss)}" in found(100, 10_100, replays, nan=True)
    assert sum(replays.states) < 100 + 100 + 5


def test_a_nan_without_a_bound_is_searched_to_the_end_of_the_run(found: Any) -> None:
    replays = Replays(900, end=1000)
    lines = found(100, None, replays, nan=True)
    assert "step 900" in lines
    assert replays.options[0]["step"] == "null"
    assert sum(replays.states) < 2 * 64 + 20
    assert "the run has no NaN or Inf up to step 1,000" in found(100, None, Replays(2000, end=1000), nan=True)
