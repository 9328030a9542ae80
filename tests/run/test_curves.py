"""The curves of a run's picture: what their points are, and that they are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import figures
from runner.run import report
from runner.training.lengths import RunLength
from tests.test_figures import size


def test_epoch_means_weight_windows_by_their_steps_and_divide_them_at_the_end_of_an_epoch() -> None:
    windows = [(2, 4.0, 0.0), (6, 1.0, 0.5), (8, 0.0, 1.0)]  # epochs of 4 steps; the second window lies in both
    means = report._by_period([(step, {"loss": loss, "mae": mae}) for step, loss, mae in windows], 4)
    assert means == [
        (4, {"loss": pytest.approx(2.5), "mae": pytest.approx(0.25)}),
        (8, {"loss": pytest.approx(0.5), "mae": pytest.approx(0.75)}),
    ]


def test_curves_are_drawn_for_every_metric_for_one_window_and_for_none(tmp_path: Path) -> None:
    length = RunLength(10, epoch=5, period=5, by_epochs=True)
    drawn = {
        "one": report.curves([(5, {"loss": 0.5})], [(5, {"loss": 0.4, "mae": 0.9, "r2": 0.5})], length),
        "two": report.curves([(5, {"loss": 0.5, "mae": 0.8})], [], length),
        "none": report.curves([], [], length),
    }
    for name, panels in drawn.items():
        figures.curves(tmp_path / f"{name}.png", panels, "step")
    assert size(tmp_path / "two.png")[0] > 1000
    assert 400 < size(tmp_path / "none.png")[0] < size(tmp_path / "two.png")[0], "one empty panel"
    assert size(tmp_path / "one.png")[1] > 1.8 * size(tmp_path / "two.png")[1], "a third metric takes a second row"


@pytest.mark.parametrize(
    ("length", "places", "period"),
    [
        (RunLength(10, epoch=5, period=5, by_epochs=True), [1.0, 1.4], "epoch"),
        (RunLength(7, epoch=100, period=5), [5.0, 7.0], "period"),
    ],
)
def test_curves_are_by_epochs_or_by_steps(length: RunLength, places: list[float], period: str) -> None:
    windows = [(3, {"loss": 0.5}), (5, {"loss": 0.4}), (7, {"loss": 0.3})]
    found = report.curves(windows, [(5, {"loss": 0.4}), (7, {"loss": 0.4})], length)
    lines = {curve.label: [x for x, _ in curve.points] for curve in found["loss"]}
    assert lines[f"train, mean of the {period}"] == pytest.approx(places)
    assert lines[f"test, after the {period}"] == pytest.approx(places)
