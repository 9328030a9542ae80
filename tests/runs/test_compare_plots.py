"""The pictures of a comparison: what their axes count, and which colors and lines mean the same run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from runner import figures
from runner.cli.runs import plots
from runner.cli.runs.records import RunRecord
from runner.cli.runs.sheet import (
    Line,
    Stat,
)


@dataclass
class Drawn:
    """The figures that were saved, instead of files."""

    figures: list[Figure] = field(default_factory=list)

    def save(self, figure: Figure, path: Path) -> None:
        del path
        self.figures.append(figure)

    @property
    def axes(self) -> Any:
        return self.figures[-1].axes[0]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    found = Drawn()
    monkeypatch.setattr(figures, "save", found.save)
    return found


def runs(**sizes: str) -> dict[str, RunRecord]:
    return {name: RunRecord(name, name, "FINISHED", {"dataset.batch_size": size}, {}) for name, size in sizes.items()}


class FakeClient:
    """Answers with POINTS, which lie by run, in any order."""

    def get_metric_history(self, run_id: str, metric: str) -> list[SimpleNamespace]:
        assert metric == "eval/loss"
        return [SimpleNamespace(step=step, value=value) for step, value in reversed(POINTS[run_id])]


POINTS = {"a": [(10, 0.5), (20, 0.25)], "b": [(5, 0.6), (10, 0.3)], "c": [(7, 0.1)]}


def test_where_batch_sizes_differ_curves_are_by_examples_and_one_point_is_no_curve(drawn: Drawn) -> None:
    client: Any = FakeClient()
    assert plots.curves(Path("x.png"), client, runs(a="32", b="64", c="64"), ["eval/loss"])
    assert drawn.axes.get_xlabel() == "training examples"
    found = {line.get_label(): list(line.get_xdata()) for line in drawn.axes.lines}
    assert list(found.values()) == [[320, 640], [320, 640]]
    assert not plots.curves(Path("x.png"), client, runs(c="64"), ["eval/loss"]), "nothing to draw"


def test_where_they_do_not_differ_or_are_not_known_curves_are_by_steps(drawn: Drawn) -> None:
    client: Any = FakeClient()
    for sizes in ({"a": "32", "b": "32"}, {"a": "32", "b": ""}):
        plots.curves(Path("x.png"), client, runs(**sizes), ["eval/loss"])
        assert drawn.axes.get_xlabel() == "training steps"
        assert list(drawn.axes.lines[0].get_xdata()) == [10, 20]


def test_only_the_best_have_a_color_and_a_name_and_two_curves_on_each_other_are_seen(drawn: Drawn) -> None:
    client: Any = FakeClient()
    labels = [f"run {number}" for number in range(10)]
    plots.curves(Path("x.png"), client, {label: runs(a="32")["a"] for label in labels}, ["eval/loss"])
    lines = drawn.axes.lines
    assert len({line.get_color() for line in lines[:7]}) == 7
    assert {line.get_color() for line in lines[7:]} == {figures.OTHER}
    legend = [text.get_text() for text in drawn.figures[-1].legends[0].get_texts()]
    assert legend == [*labels[:7], "3 others"]
    assert [line.get_linestyle() for line in lines[:2]] == ["-", "--"]


def lines_of(*values: dict[str, str]) -> list[Line]:
    return [Line(each, {"eval/accuracy": Stat(0.9 + index / 100)}, ()) for index, each in enumerate(values)]


def joined(drawn: Drawn) -> int:
    """Returns how many lines have two points and a width."""
    return sum(len(line.get_xdata()) > 1 and line.get_linewidth() > 0 for line in drawn.axes.lines)


def test_a_number_is_joined_a_word_and_a_trial_are_not(drawn: Drawn) -> None:
    grid = lines_of(*({"rate": rate, "mesh": mesh} for rate in ("0.1", "0.2") for mesh in ("single", "batch8")))
    plots.against(Path("x.png"), "eval/accuracy", "rate", grid)
    assert joined(drawn) == 2
    plots.against(Path("x.png"), "eval/accuracy", "mesh", grid)
    assert joined(drawn) == 0
    plots.against(Path("x.png"), "eval/accuracy", "rate", grid, related=False)
    assert joined(drawn) == 0
    assert drawn.axes.get_legend() is None
