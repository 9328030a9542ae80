from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from runner.data.base import ArraySpec
from runner.task.base import Evaluation
from runner.training import plots
from runner.training.lengths import RunLength


def size(path: Path) -> tuple[int, int]:
    """Returns the width and height of a PNG."""
    head = path.read_bytes()[:24]
    assert head[1:4] == b"PNG"
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def test_epoch_means_weight_windows_by_their_steps_and_divide_them_at_the_end_of_an_epoch() -> None:
    windows = [(2, 4.0, 0.0), (6, 1.0, 0.5), (8, 0.0, 1.0)]  # epochs of 4 steps; the second window lies in both
    means = plots._by_period([(step, {"loss": loss, "mae": mae}) for step, loss, mae in windows], 4)
    assert means == [
        (4, {"loss": pytest.approx(2.5), "mae": pytest.approx(0.25)}),
        (8, {"loss": pytest.approx(0.5), "mae": pytest.approx(0.75)}),
    ]


def test_curves_are_drawn_for_every_metric_for_one_window_and_for_none(tmp_path: Path) -> None:
    evaluation = Evaluation({"loss": 0.4, "mae": 0.9, "r2": 0.5}, 10, {}, np.zeros(0, np.float32))
    length = RunLength(10, epoch=5, period=5, by_epochs=True)
    plots.curves(tmp_path / "one.png", [(5, {"loss": 0.5})], [(5, evaluation)], length)
    plots.curves(tmp_path / "two.png", [(5, {"loss": 0.5, "mae": 0.8})], [], length)
    plots.curves(tmp_path / "none.png", [], [], length)
    assert size(tmp_path / "two.png")[0] > 1000
    assert 400 < size(tmp_path / "none.png")[0] < size(tmp_path / "two.png")[0], "one empty panel"
    assert size(tmp_path / "one.png")[1] > 1.8 * size(tmp_path / "two.png")[1], "a third metric takes a second row"


def test_the_picture_of_a_batch_has_a_row_for_each_input_of_any_rank(tmp_path: Path) -> None:
    specs = {
        "image": ArraySpec((4, 6, 1), "float32", ("height", "width", "channel")),
        "row": ArraySpec((3,), "float32"),
        "one": ArraySpec((), "int32"),
    }
    halves = {0: (0, 4), 1: (4, 8)}
    pieces = {
        name: {device: (span, *((0, n) for n in spec.shape)) for device, span in halves.items()}
        for name, spec in specs.items()
    }
    plots.sharding(tmp_path / "all.png", 8, specs, pieces, {"batch": 2}, "a batch")
    plots.sharding(tmp_path / "image.png", 8, specs, {"image": pieces["image"]}, {"batch": 2}, "a batch")
    assert size(tmp_path / "all.png")[1] > 2.5 * size(tmp_path / "image.png")[1]


def test_a_piece_is_labeled_with_its_devices_and_mesh_coordinates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, _: figures.append(figure))
    specs = {"image": ArraySpec((4, 6, 1), "float32", ("height", "width", "channel"))}
    pieces = {  # batch over rows of devices, height over columns of them
        device: ((4 * (device // 2), 4 * (device // 2) + 4), (2 * (device % 2), 2 * (device % 2) + 2), (0, 6), (0, 1))
        for device in range(4)
    }
    plots.sharding(tmp_path / "x.png", 8, specs, {"image": pieces}, {"batch": 2, "height": 2}, "a batch")
    left, right = figures[0].axes
    assert (left.get_ylabel(), left.get_xlabel(), right.get_xlabel()) == ("example of the batch", "height", "width")
    assert [text.get_text() for text in left.texts] == [
        "device 0\nbatch 0, height 0",
        "device 1\nbatch 0, height 1",
        "device 2\nbatch 1, height 0",
        "device 3\nbatch 1, height 1",
    ]
    assert [text.get_text() for text in right.texts] == ["devices 0, 2\nheight 0", "devices 1, 3\nheight 1"]
    whole = dict.fromkeys(range(4), ((0, 8), (0, 4), (0, 6), (0, 1)))
    plots.sharding(tmp_path / "x.png", 8, specs, {"image": whole}, {"batch": 2, "height": 2}, "a batch")
    assert figures[1].axes[0].texts[0].get_text() == "devices 0 to 3"


def test_a_single_point_is_no_curve() -> None:
    assert not plots.has_curves([(5, {})], [(5, None)])
    assert plots.has_curves([(5, {}), (10, {})], [])
    assert plots.has_curves([], [(5, None), (10, None)])


@pytest.mark.parametrize(
    ("length", "label", "places", "legend"),
    [
        (RunLength(10, epoch=5, period=5, by_epochs=True), "epoch (of 5 steps)", [1.0, 1.4], "mean of the epoch"),
        (RunLength(7, epoch=100, period=5), "step", [5.0, 7.0], "mean of the period"),
    ],
)
def test_curves_are_drawn_by_epochs_or_by_steps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    length: RunLength,
    label: str,
    places: list[float],
    legend: str,
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, _: figures.append(figure))
    evaluation = Evaluation({"loss": 0.4}, 10, {}, np.zeros(0, np.float32))
    windows = [(3, {"loss": 0.5}), (5, {"loss": 0.4}), (7, {"loss": 0.3})]
    plots.curves(tmp_path / "x.png", windows, [(5, evaluation), (7, evaluation)], length)
    axes = figures[0].axes[0]
    assert axes.get_xlabel() == label
    lines = {str(line.get_label()): list(line.get_xdata()) for line in axes.lines}
    assert lines[f"train, {legend}"] == pytest.approx(places)
    assert lines[f"test, after the {legend.removeprefix('mean of the ')}"] == pytest.approx(places)
