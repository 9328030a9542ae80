"""The search of candidates: what is left out, and why."""

from dataclasses import replace
from typing import Any, cast

from runner.errors import EngineError
from runner.layout.hybrid import Split
from runner.plan.advise import arithmetic, ranking
from runner.plan.advise.arithmetic import Arithmetic
from runner.plan.advise.candidates import Allowed, Candidate
from tests.advise.test_candidates import planned

OPEN = Allowed(("batch",), ("fsdp",), ("none", "full"), (1, 2), ("float32",))


class Search:
    """Plans that a table gives, by remat and accumulation."""

    def __init__(self, verdicts: dict[tuple[str, int], str], *, state_fits: bool) -> None:
        self.verdicts = verdicts
        self.state_fits = state_fits
        # Numbers of microbatches whose state is too large.
        self.too_large_states: set[int] = set()

    def placed(self, _: Candidate) -> dict[str, Any]:
        return {}

    def split(self, *_: object) -> Split | None:
        return None

    def lint(self, *_: object) -> None:
        return None

    def planned(self, candidate: Candidate, _: dict[str, Any]) -> ranking.Planned:
        assert candidate.remat is not None
        verdict = self.verdicts[candidate.remat, candidate.accumulate]
        entry = planned(candidate, memory=1, seconds=1.0, verdict=verdict)
        if candidate.accumulate in self.too_large_states:
            return replace(entry, state_fits=False)
        return replace(entry, state_fits=self.state_fits or verdict != ranking.TOO_LARGE)


def explored(
    verdicts: dict[tuple[str, int], str], *, state_fits: bool = False
) -> tuple[dict[tuple[str | None, int], str], set[str]]:
    search = Search(verdicts, state_fits=state_fits)
    found, dropped = arithmetic.explored(cast("Arithmetic", search), 8, OPEN, print)
    by_option = {(entry.candidate.remat, entry.candidate.accumulate): entry.verdict for entry in found}
    return by_option, {entry.reason for entry in dropped}


def test_sums_of_gradients_that_do_not_fit_leave_out_accumulation_only() -> None:
    verdicts = {("none", 1): ranking.MAY_FIT, ("full", 1): ranking.FITS, ("full", 2): ranking.TOO_LARGE}
    found, dropped = explored(verdicts)
    assert found == verdicts
    assert dropped == {arithmetic.STATE}


def test_a_state_that_does_not_fit_alone_does_not_fit_with_sums_of_gradients() -> None:
    verdicts = {("none", 1): ranking.TOO_LARGE, ("full", 2): ranking.TOO_LARGE}
    found, dropped = explored(verdicts)
    assert found == verdicts
    assert dropped == {arithmetic.STATE}


def test_saving_more_is_tried_if_estimates_are_too_large_and_the_state_is_not() -> None:
    verdicts = {("none", 1): ranking.TOO_LARGE, ("none", 2): ranking.FITS, ("full", 1): ranking.FITS}
    verdicts["full", 2] = ranking.FITS
    found, _ = explored(verdicts, state_fits=True)
    assert found == verdicts


def test_one_is_planned_where_the_one_that_saves_the_most_does_not_fit() -> None:
    verdicts = {("full", 2): ranking.TOO_LARGE}
    found, dropped = explored(verdicts, state_fits=True)
    assert found == verdicts
    assert dropped == {arithmetic.ACTIVATIONS}


def test_a_layout_without_a_valid_candidate_is_left_out_with_the_reason() -> None:
    search = Search({}, state_fits=True)

    def planned(*_: object) -> ranking.Planned:
        raise EngineError("no such plan")

    search.planned = planned  # type: ignore[method-assign]
    found, dropped = arithmetic.explored(cast("Arithmetic", search), 8, OPEN, print)
    assert found == []
    assert ("no such plan", arithmetic.INVALID) in {(entry.detail, entry.reason) for entry in dropped}


def test_the_most_saving_candidate_whose_state_does_not_fit_is_planned_once() -> None:
    verdicts = {("none", 1): ranking.TOO_LARGE, ("none", 2): ranking.TOO_LARGE, ("full", 1): ranking.FITS}
    verdicts["full", 2] = ranking.TOO_LARGE
    search = Search(verdicts, state_fits=True)
    search.too_large_states = {2}
    found, dropped = arithmetic.explored(cast("Arithmetic", search), 8, OPEN, print)
    options = [(entry.candidate.remat, entry.candidate.accumulate) for entry in found]
    assert sorted(options, key=str) == [("full", 1), ("full", 2), ("none", 1)]
    assert {entry.reason for entry in dropped} == {arithmetic.STATE}


def test_fsdp_over_devices_that_divide_nothing_is_planned_with_replicas() -> None:
    axes = {"replica": 2, "batch": 4}
    search = Search({("none", 1): ranking.FITS, ("full", 2): ranking.FITS}, state_fits=True)
    search.split = lambda *_: Split("axis 'batch' of size 8 divides no dim", axes)  # type: ignore[method-assign]
    found, dropped = arithmetic.explored(cast("Arithmetic", search), 8, OPEN, print)
    assert {entry.candidate.axes for entry in found} == {tuple(axes.items())}
    (reason,) = [entry.detail for entry in dropped if entry.reason == arithmetic.LINT]
    assert reason.startswith("layout=fsdp: axis 'batch' of size 8 divides no dim")
