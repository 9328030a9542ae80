"""Plans of candidates in processes: how many run at a time, and what comes first afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from runner.host import cores
from runner.plan.advise import (
    command,
    compiled,
    ranking,
)
from tests.advise.test_candidates import START, planned


def test_plans_are_made_by_processes_and_an_error_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_PLAN", "tests.advise.fake_plan")
    second = replace(START, layout="replicated")
    entries = [planned(START, memory=1, seconds=1.0), planned(second, memory=1, seconds=1.0)]
    made = compiled.Children((), ("engine=jax",)).plans(entries, "target")
    assert [entry.depth for entry in made if isinstance(entry, ranking.Planned)] == ["cpu", "cpu"]
    monkeypatch.setattr(compiled, "_PLAN", "tests.advise.no_such_module")
    (broken,) = compiled.Children((), ("engine=jax",)).plans(entries[:1], "target")
    assert "no_such_module" in str(broken)


@pytest.mark.parametrize(("gib", "count"), [(1000, 8), (7, 2), (1, 1)])
def test_processes_share_the_cores_and_the_memory_that_is_free(
    monkeypatch: pytest.MonkeyPatch, gib: int, count: int
) -> None:
    monkeypatch.setattr(cores, "available", lambda: 8)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=gib << 30))
    assert compiled.Children((), ()).concurrency == count


@dataclasses.dataclass
class Compiler:
    """Children that answer from a function of the candidate's step time."""

    verdict: Callable[[float], str]
    concurrency: int = 3

    def __post_init__(self) -> None:
        self.asked: list[float] = []

    def plans(self, entries: Sequence[ranking.Planned], compiler: str) -> list[ranking.Planned | str]:
        assert compiler == "target"
        assert len(entries) <= self.concurrency
        answers: list[ranking.Planned | str] = []
        for entry in entries:
            self.asked.append(entry.seconds)
            verdict = self.verdict(entry.seconds)
            answers.append(verdict if verdict == "error" else replace(entry, verdict=verdict, depth="target"))
        return answers


def candidates_of(verdicts: Mapping[str, int]) -> list[ranking.Planned]:
    """Returns so many candidates of each verdict, those of the first the fastest, ranked."""
    entries: list[ranking.Planned] = []
    for verdict, count in verdicts.items():
        for _ in range(count):
            number = len(entries)
            candidate = replace(START, axes=(("batch", number + 1),))
            entries.append(planned(candidate, memory=1, seconds=float(number + 1), verdict=verdict))
    return ranking.ranked(entries)


def compile_all(compiler: Any, entries: Sequence[ranking.Planned]) -> list[ranking.Planned]:
    return command._compile(compiler, entries, "target")


def test_the_number_of_compiled_candidates_is_limited_whatever_runs_at_a_time() -> None:
    compiler = Compiler(lambda _: ranking.MAY_FIT, concurrency=100)
    compile_all(compiler, candidates_of({ranking.MAY_FIT: 20}))
    assert compiler.asked == [float(number) for number in range(1, 9)]


def test_candidates_that_fit_by_arithmetic_are_compiled_if_the_fast_ones_are_too_large() -> None:
    compiler = Compiler(lambda seconds: ranking.TOO_LARGE if seconds < 12 else ranking.FITS)
    entries = compile_all(compiler, candidates_of({ranking.MAY_FIT: 10, ranking.FITS: 4}))
    # Eight of those that may fit, then those that fit until one does.
    assert compiler.asked == [*(float(number) for number in range(1, 9)), 11.0, 12.0, 13.0]
    assert [(entry.seconds, entry.verdict) for entry in entries[:2]] == [(12.0, ranking.FITS), (13.0, ranking.FITS)]
    assert [entry.seconds for entry in entries[2:5]] == [14.0, 9.0, 10.0], "unseen, before those that are too large"
    assert {entry.verdict for entry in entries[5:]} == {ranking.TOO_LARGE}


def test_what_a_compiler_finds_too_large_comes_after_what_it_has_not_seen() -> None:
    compiler = Compiler(lambda _: ranking.TOO_LARGE)
    entries = compile_all(compiler, candidates_of({ranking.MAY_FIT: 8, ranking.FITS: 9, ranking.TOO_LARGE: 1}))
    assert entries[0].verdict == ranking.FITS
    assert [entry.verdict for entry in entries[1:]] == [ranking.TOO_LARGE] * 17


def test_what_can_not_be_compiled_comes_after_what_can() -> None:
    compiler = Compiler(lambda seconds: "error" if seconds < 3 else ranking.FITS)
    entries = compile_all(compiler, candidates_of({ranking.FITS: 6}))
    assert [entry.seconds for entry in entries] == [3.0, 4.0, 5.0, 6.0, 1.0, 2.0]
    broken = Compiler(lambda _: "error")
    assert [entry.seconds for entry in compile_all(broken, candidates_of({ranking.FITS: 3}))] == [1.0, 2.0, 3.0]


def test_one_that_fits_is_enough_once_compiling_was_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(lambda seconds: ranking.TOO_LARGE if seconds < 3 else ranking.FITS, concurrency=1)
    times = iter(range(0, 10_000, 40))
    monkeypatch.setattr(command.time, "monotonic", lambda: float(next(times)))
    compile_all(compiler, candidates_of({ranking.FITS: 8}))
    assert compiler.asked == [1.0, 2.0, 3.0]
