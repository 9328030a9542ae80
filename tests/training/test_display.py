"""What a person sees while a run trains."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from runner.task.base import Evaluation
from runner.train import display

EVALUATION = Evaluation({"loss": 0.25}, 10, {}, np.zeros((0, 2), np.float32))


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_a_line_every_few_seconds_and_one_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_SECONDS_BETWEEN_LINES", 0.0)
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(display, "time", clock)
    out = console(terminal=False)
    lines = display.Display("auto", out, "validation")
    lines.start_period("epoch 2/3", 10, 2, after=1000)
    lines.update(4, 2.0, {"loss": 0.5})
    clock.monotonic = lambda: 60.0  # since the first call, which compiled
    lines.update(6, 2.0, {"loss": 0.5})
    lines.end_period({"loss": 0.5}, EVALUATION)
    lines.close()
    assert shown(out).splitlines() == [
        "epoch 2/3  step 4/10  2 steps/s  loss 0.5000",
        "epoch 2/3  step 6/10  2 steps/s  loss 0.5000  run 8:22:00 left",  # 1,004 steps of 30 s
        "epoch 2/3 train loss 0.5000 | validation loss 0.2500",
    ]


def test_a_terminal_gets_one_bar_even_if_an_epoch_is_restarted() -> None:
    out = console(terminal=True)
    bar = display.Display("auto", out)
    assert bar._progress is not None
    for done in (0, 2):
        bar.start_period("epoch 1/3", 10, done)
        bar.update(5, 3.0, {"loss": 0.5})
        assert [task.completed for task in bar._progress.tasks] == [5]
    bar.end_period({"loss": 0.5}, None)
    assert not bar._progress.tasks
    bar.close()
    assert "epoch 1/3 train loss 0.5000" in shown(out)


def test_progress_none_shows_nothing() -> None:
    out = console(terminal=True)
    none = display.Display("none", out)
    none.start_period("epoch 1/3", 10)
    none.update(5, 3.0, {"loss": 0.5})
    none.end_period({"loss": 0.5}, EVALUATION)
    none.close()
    assert not shown(out)
