from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.engine.base import EvalMetrics
from runner.engine.logits import LogitRows
from runner.training import plots


def size(path: Path) -> tuple[int, int]:
    """Returns the width and height of a PNG."""
    head = path.read_bytes()[:24]
    assert head[1:4] == b"PNG"
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def test_missed_examples_come_with_the_most_confident_first() -> None:
    logits = np.array([[1, 0], [9, 0], [5, 0], [0, 7]], np.float32)
    missed, predicted, probability = plots.missed_examples(np.array([0, 1, 1, 0]), logits)
    assert missed.tolist() == [1, 3, 2]
    assert predicted.tolist() == [0, 1, 0]
    assert probability == pytest.approx(1 / (1 + np.exp([-9.0, -7.0, -5.0])))
    nothing, _, _ = plots.missed_examples(np.array([0, 0, 0, 1]), logits)
    assert nothing.tolist() == []


@pytest.mark.parametrize(("wrong", "channels"), [(0, 1), (1, 3), (60, 1)])
def test_the_picture_of_wrong_examples_grows_with_them_up_to_a_grid(tmp_path: Path, wrong: int, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (70, 8, 8, channels), dtype=np.uint8)
    labels = np.zeros(70, np.int32)
    logits = np.eye(2, dtype=np.float32)[(np.arange(60) < wrong).astype(int)]
    plots.wrong(tmp_path / "wrong.png", images, labels, logits, ("a long name that does not fit", "b"))
    width, height = size(tmp_path / "wrong.png")
    assert (width > 1000 and height > 900) == (wrong == 60)
    assert width > 400
    assert height > 250


def test_epoch_means_weigh_windows_by_their_steps_and_cut_them_at_an_epochs_end() -> None:
    train = [(2, 4.0, 0.0), (6, 1.0, 0.5), (8, 0.0, 1.0)]  # epochs of 4 steps; the second window lies in both
    means = plots._by_epoch(train, 4)
    assert means == {1: (pytest.approx(2.5), pytest.approx(0.25)), 2: (pytest.approx(0.5), pytest.approx(0.75))}


def test_curves_are_drawn_of_one_window_and_of_none(tmp_path: Path) -> None:
    evaluation = EvalMetrics(0.4, 0.9, 10, np.eye(2, dtype=np.int64))
    plots.curves(tmp_path / "one.png", [(5, 0.5, 0.8)], [(5, evaluation)], 5)
    plots.curves(tmp_path / "none.png", [], [], 5)
    assert size(tmp_path / "one.png")[0] > 1000
    assert size(tmp_path / "none.png")[0] > 1000


def test_logits_are_read_a_batch_late_and_without_padding() -> None:
    read: list[float] = []

    def reading(batch: np.ndarray) -> np.ndarray:
        read.append(float(batch[0, 0]))
        return batch

    rows = LogitRows(reading)
    rows.add(np.full((3, 2), 1.0), np.array([1.0, 1.0, 1.0]))
    assert read == []
    rows.add(np.full((3, 2), 2.0), np.array([1.0, 0.0, 0.0]))
    assert read == [1.0]
    whole = rows.whole(2)
    assert whole.dtype == np.float32
    assert whole[:, 0].tolist() == [1.0, 1.0, 1.0, 2.0]
    assert LogitRows(reading).whole(2).shape == (0, 2)
