"""learning_rate.png of a plan and of a run: it is there, and what is drawn are the schedule's rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from runner import figures
from runner.config.schema import OptimizerConfig, RunConfig, ScheduleConfig
from runner.optim.schedules import learning_rate, sampled
from runner.plan import picture
from runner.plan.files import LEARNING_RATE_PICTURE, draw_learning_rates, write_files
from runner.run import report
from tests.optim.test_schedules import BASE, OWN, SCHEDULES, TOTAL, make
from tests.plan import cases
from tests.plan.test_command import run as command
from tests.run.test_runs import run as train
from tests.test_figures import size

# Pixels, width and height: 7 by 3.2 inches at 110 dots per inch, with margins cut or added.
SMALLEST, LARGEST = (600, 250), (1000, 500)


def is_sensible(path: Path) -> bool:
    """Returns whether a file is a PNG of a size that shows a curve."""
    width, height = size(path)
    return SMALLEST[0] < width < LARGEST[0] and SMALLEST[1] < height < LARGEST[1]


def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[float]]]:
    """Returns a list to which each picture of rates adds the steps and the rates of its line."""
    lines: list[tuple[list[int], list[float]]] = []
    save = figures.save

    def kept(figure: Figure, path: Path) -> None:
        (line,) = figure.axes[0].lines
        lines.append((list(line.get_xdata()), list(line.get_ydata())))
        save(figure, path)

    monkeypatch.setattr(figures, "save", kept)
    return lines


@pytest.mark.parametrize("name", [name for name in SCHEDULES | OWN if name != "constant"])
def test_the_picture_of_a_plan_has_the_rate_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lines = drawn_by(monkeypatch)
    config = make((SCHEDULES | OWN)[name])
    plan = replace(cases.plan(), learning_rates=tuple(sampled(config, TOTAL)), schedule=name)
    # The plan's other picture takes a second, and is not what this test is about.
    monkeypatch.setattr(picture, "draw", lambda _, path: path.touch())
    written = write_files(plan, tmp_path)
    assert tmp_path / LEARNING_RATE_PICTURE in written
    assert is_sensible(tmp_path / LEARNING_RATE_PICTURE)
    assert lines == [(list(range(TOTAL)), [learning_rate(config, step, TOTAL) for step in range(TOTAL)])]


def test_a_plan_with_one_rate_has_no_picture_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "draw", lambda _, path: path.touch())
    write_files(replace(cases.plan(), learning_rates=tuple(sampled(make(ScheduleConfig()), TOTAL))), tmp_path)
    assert not (tmp_path / LEARNING_RATE_PICTURE).exists()


def test_the_picture_of_a_run_has_the_reductions_at_plateaus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OptimizerConfig(learning_rate=BASE, schedule=ScheduleConfig("linear", warmup_steps=7))
    result = SimpleNamespace(rate_changes=[(20, 0.5), (40, 0.25)], steps=TOTAL)
    outcome: Any = SimpleNamespace(
        config=RunConfig(optimizer=config), result=result, length=SimpleNamespace(total=TOTAL)
    )
    rates = report._actual_rates(outcome)
    lines = drawn_by(monkeypatch)
    draw_learning_rates(tmp_path / LEARNING_RATE_PICTURE, rates, "linear")
    factors = [1.0] * 20 + [0.5] * 20 + [0.25] * (TOTAL - 40)
    expected = [learning_rate(config, step, TOTAL) * factor for step, factor in enumerate(factors)]
    assert lines == [(list(range(TOTAL)), expected)]
    assert is_sensible(tmp_path / LEARNING_RATE_PICTURE)
    result.rate_changes = []
    assert report._actual_rates(outcome) == [], "the picture of the plan is right"


_SCHEDULE = ["optimizer.schedule.name=cosine", "optimizer.schedule.warmup_steps=5", "tracking=none", "mesh=batch2"]


@pytest.mark.nightly
def test_the_folders_of_a_plan_and_of_a_run_have_the_picture(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    folder.mkdir()
    command(folder, *_SCHEDULE, f"hydra.run.dir={folder}")
    assert is_sensible(folder / LEARNING_RATE_PICTURE)
    train(tmp_path, *_SCHEDULE, "engine=jax", "trainer.epochs=1")
    assert is_sensible(tmp_path / "run" / LEARNING_RATE_PICTURE)
