"""The curves of a run's picture: what their points are, and that they are drawn."""

import pytest

from runner.engine.lengths import RunLength
from runner.train import report


@pytest.mark.parametrize(
    ("length", "places", "period"),
    [
        (RunLength(10, epoch=5, period=5, by_epochs=True), [1.0, 1.4], "epoch"),
        (RunLength(7, epoch=100, period=5), [5.0, 7.0], "period"),
    ],
)
def test_curves_are_by_epochs_or_by_steps(length: RunLength, places: list[float], period: str) -> None:
    windows = [(3, {"loss": 0.5}), (5, {"loss": 0.4}), (7, {"loss": 0.3})]
    ends = [(5, {"loss": 0.45}), (7, {"loss": 0.3})]
    found = report.curves(windows, ends, [(5, {"loss": 0.4}), (7, {"loss": 0.4})], length)
    lines = {curve.label: [x for x, _ in curve.points] for curve in found["loss"]}
    assert lines[f"train, mean of the {period}"] == pytest.approx(places)
    assert lines[f"test, after the {period}"] == pytest.approx(places)
