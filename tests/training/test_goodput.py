"""Goodput: kinds of wall time per attempt and of a whole run, against sums by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from runner.checkpoint.attempts import Attempt
from runner.host import work
from runner.train import goodput

# Three attempts. The first does 100 steps in 50 s and is killed; the second begins at 80, 30 s later, and does 40 more
# in 20 s; the third, 10 s later, begins at 120 and ends at 200.
ATTEMPTS = [
    Attempt(1, began=1000.0, seen=1060.0, first=0, step=100, seconds={"start": 8.0, "training": 50.0, "save": 2.0}),
    Attempt(
        2,
        began=1090.0,
        seen=1120.0,
        first=80,
        step=120,
        ended="interrupted",
        seconds={"start": 5.0, "training": 20.0, "input wait": 5.0},
    ),
    Attempt(
        3, began=1130.0, seen=1180.0, first=120, step=200, ended="finished", seconds={"start": 10.0, "training": 40.0}
    ),
]


def test_the_parts_are_those_by_hand() -> None:
    measured = goodput.of(ATTEMPTS)
    first, second, third = measured.shares
    # 20 of 100 steps are trained again: 10 of the 50 s.
    assert first.seconds == {"training": 40.0, "lost steps": 10.0, "start": 8.0, "save": 2.0}
    assert second.seconds == {"training": 20.0, "restart": 30.0, "start": 5.0, "input wait": 5.0}
    assert third.seconds == {"training": 40.0, "restart": 10.0, "start": 10.0}
    assert measured.whole.wall == 1180.0 - 1000.0, "all of the time between the first start and the last end"
    assert measured.whole.lost_steps == 20
    metrics = measured.metrics()
    assert metrics["goodput/training"] == pytest.approx(100 / 180)
    assert metrics["goodput/lost_steps"] == pytest.approx(10 / 180)
    assert metrics["goodput/restart"] == pytest.approx(40 / 180)
    assert (metrics["goodput/attempts"], metrics["goodput/repeated_steps"]) == (3.0, 20.0)
    shares = [value for name, value in metrics.items() if name not in ("goodput/attempts", "goodput/repeated_steps")]
    assert sum(shares) == pytest.approx(1.0)
    assert [entry["lost_steps"] for entry in measured.content()] == [20, 0, 0]


def test_the_line_at_the_end_names_what_was_lost_and_a_better_interval() -> None:
    measured = goodput.of(ATTEMPTS)
    line = goodput.line(measured, 10.0, save_seconds=1.0)
    assert line == (
        "goodput: 56% of 180 s went into training steps; 6% into 20 steps that were lost and trained again, 35% into "
        "starts, in 2 restarts; set trainer.checkpoint.every_minutes=1 instead of 10 to lose less"
    )
    assert "every_minutes" not in str(goodput.line(measured, None, 1.0)), "the run does not save by time"
    assert goodput.line(goodput.of(ATTEMPTS[2:]), 10.0, 1.0) is None, "nothing was lost"


def test_a_run_that_is_trained_longer_after_its_end_has_no_restart() -> None:
    finished = replace(ATTEMPTS[0], step=80, ended="finished")
    measured = goodput.of([finished, ATTEMPTS[1]])
    assert measured.whole.share("restart") == 0.0
    assert goodput.line(measured, 10.0, 1.0) is None


def test_the_tag_lists_each_attempt_with_its_cause() -> None:
    assert goodput.causes(goodput.of(ATTEMPTS)) == (
        "1: steps 0 to 100, killed, or lost with its machine, 20 steps lost; 2: steps 80 to 120, interrupted; "
        "3: steps 120 to 200, finished"
    )


def test_the_kinds_of_a_clock_add_up_and_an_inner_one_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("runner.host.work.time.monotonic", lambda: now[0])

    def take(seconds: float) -> None:
        now[0] += seconds

    def slow_items() -> Iterator[int]:
        take(2.0)
        yield 1

    clock = work.Clock(before=3.0)
    take(1.0)
    with clock.doing(work.TRAINING):
        take(10.0)
        with clock.doing(work.SAVE):
            take(0.5)
        for _ in clock.waiting(slow_items(), work.INPUT):
            take(4.0)
    clock.become(work.REPORT)
    take(7.0)
    assert clock.seconds() == {"start": 4.0, "training": 14.0, "save": 0.5, "input wait": 2.0, "report": 7.0}
    assert clock.mean(work.SAVE) == 0.5
