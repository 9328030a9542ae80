"""The curves of a run's picture: what their points are, and that they are drawn."""

from __future__ import annotations

import pytest

from runner.engine.lengths import RunLength
from runner.train import report


def test_epoch_means_weight_windows_by_their_steps_and_divide_them_at_the_end_of_an_epoch() -> None:
    windows = [(2, 4.0, 0.0), (6, 1.0, 0.5), (8, 0.0, 1.0)]  # epochs of 4 steps; the second window lies in both
    means = report._by_period([(step, {"loss": loss, "mae": mae}) for step, loss, mae in windows], 4)
    assert means == [
        (4, {"loss": pytest.approx(2.5), "mae": pytest.approx(0.25)}),
        (8, {"loss": pytest.approx(0.5), "mae": pytest.approx(0.75)}),
    ]


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
