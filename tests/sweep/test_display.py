"""What is seen of a sweep's jobs while they run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from runner.cli.sweep.display import JobsDisplay
from runner.cli.sweep.jobs import (
    Job,
    Outcome,
)


class Judge:
    """Takes outcomes; a job that passed came to a metric."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}

    def should_stop(self, job: Job) -> bool:
        return job.number == 7

    def ended(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.number] = outcome

    def result(self, job: Job, outcome: Outcome) -> str:
        return f"eval/loss 0.2{job.number}" if outcome.status == "passed" else ""


def job(number: int) -> Job:
    return Job(number, (), Path(), {"trainer.seed": str(number)})


def console(*, terminal: bool, width: int = 60) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines(display: JobsDisplay, width: int) -> list[str]:
    """Returns what is drawn of the running jobs."""
    out = console(terminal=False, width=width)
    out.print(display._lines())
    return shown(out).splitlines()


def test_a_log_has_a_line_at_each_beginning_and_end_and_a_warning_once() -> None:
    out, judge = console(terminal=False), Judge()
    with JobsDisplay(judge, out) as display:
        for number in (0, 1):
            display.started(job(number))
            display.said(job(number), "warning: the warm-up is longer than the run\n")
            display.said(job(number), "epoch 1/3  step 4/10\n")
        display.ended(job(1), Outcome("failed", 1, 12.3, "the loss is nan"))
        display.ended(job(0), Outcome("passed", 0, 23.4))
        assert (display.should_stop(job(0)), display.should_stop(job(7))) == (False, True)
    assert shown(out).splitlines() == [
        "job 0, seed=0: started",
        "job 0, seed=0: warning: the warm-up is longer than the run",
        "job 1, seed=1: started",
        "job 1, seed=1: failed after 12 s, the loss is nan",
        "job 0, seed=0: passed after 23 s, eval/loss 0.20",
    ]
    assert {number: outcome.status for number, outcome in judge.outcomes.items()} == {0: "passed", 1: "failed"}


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_has_a_line_for_each_job_that_runs_no_wider_than_it_is(width: int) -> None:
    out = console(terminal=True, width=width)
    with JobsDisplay(Judge(), out) as display:
        for number in (0, 1):
            display.started(job(number))
        display.said(job(0), "epoch 1/3  step 4/10  120 steps/s  loss 0.5000, accuracy 0.8000  3 s left\n")
        display.said(job(1), "compiling the step ...")
        display.said(job(1), "└──────┘\n")
        first, second = lines(display, width)
        assert max(len(first), len(second)) <= width
        assert first.startswith("job 0, seed=0    0 s  epoch 1/3")
        assert second.startswith("job 1, seed=1    0 s  compiling the")
        display.ended(job(0), Outcome("passed", 0, 23.4))
        assert lines(display, width) == [second]
    assert "job 0, seed=0: passed after 23 s, eval/loss 0.20" in shown(out)
    assert "started\n" not in shown(out)
