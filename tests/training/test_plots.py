from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.data.base import ArraySpec
from runner.task.base import Evaluation
from runner.training import plots


def size(path: Path) -> tuple[int, int]:
    """Returns the width and height of a PNG."""
    head = path.read_bytes()[:24]
    assert head[1:4] == b"PNG"
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def test_epoch_means_weigh_windows_by_their_steps_and_cut_them_at_an_epochs_end() -> None:
    windows = [(2, 4.0, 0.0), (6, 1.0, 0.5), (8, 0.0, 1.0)]  # epochs of 4 steps; the second window lies in both
    means = plots._by_epoch([(step, {"loss": loss, "mae": mae}) for step, loss, mae in windows], 4)
    assert means == {
        1: {"loss": pytest.approx(2.5), "mae": pytest.approx(0.25)},
        2: {"loss": pytest.approx(0.5), "mae": pytest.approx(0.75)},
    }


def test_curves_are_drawn_of_every_metric_of_one_window_and_of_none(tmp_path: Path) -> None:
    evaluation = Evaluation({"loss": 0.4, "mae": 0.9, "r2": 0.5}, 10, {}, np.zeros(0, np.float32))
    plots.curves(tmp_path / "one.png", [(5, {"loss": 0.5})], [(5, evaluation)], 5)
    plots.curves(tmp_path / "two.png", [(5, {"loss": 0.5, "mae": 0.8})], [], 5)
    plots.curves(tmp_path / "none.png", [], [], 5)
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
