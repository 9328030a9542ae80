"""What a task shows of an evaluation: its tables' numbers, and pictures of the right size and content."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image as files
from sklearn import metrics as sklearn

from runner.data.base import ArraySource, ArraySpec, DataSource
from runner.figures import Curve, against, curves, examples
from runner.task import pictures as draw
from runner.task.base import Report, Task
from runner.task.pictures import confusion
from runner.task.registry import make_task
from tests.task import cases
from tests.task.test_metrics import evaluated


class Blocks(DataSource):
    """A source that can only be read row by row, as one of files is; it counts what it reads."""

    def __init__(self, source: ArraySource) -> None:
        self._source, self.specs, self.size, self.reads = source, source.specs, source.size, 0

    def read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        self.reads += len(rows)
        return self._source.read(rows)


def pictures(report: Report, folder: Path) -> dict[str, np.ndarray]:
    """Writes a report's pictures, each of which shows something, and returns their pixels (H, W, 4)."""
    shown = {}
    for name, write in report.files.items():
        write(folder / name)
        shown[name] = files.imread(folder / name)
        assert min(shown[name].shape[:2]) > 200
        assert shown[name][..., :3].std() > 0.05
    return shown


def assert_columns(rows: Sequence[Sequence[Any]], *columns: np.ndarray) -> None:
    """Checks the columns of a table after the first one; scikit-learn has 0 where the table has no number."""
    for place, column in enumerate(columns, start=1):
        assert [row[place] or 0.0 for row in rows] == pytest.approx(list(column))


def of_images(count: int = 90) -> tuple[Task, ArraySource, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, count).astype(np.int32)
    images = np.zeros((count, 8, 8, 1), np.uint8)
    images[np.arange(count), labels] = 255
    specs = {
        "image": ArraySpec((8, 8, 1), "uint8", ("height", "width", "channel")),
        "label": ArraySpec((), "int32", (), ("cat", "dog", "a very long name of a class")),
    }
    outputs = (2 * np.eye(3)[labels] + rng.normal(size=(count, 3))).astype(np.float32)
    return (
        make_task(cases.config("classification"), specs),
        ArraySource({"image": images, "label": labels}, specs),
        outputs,
    )


def test_the_table_of_classes_has_scikit_learns_precision_and_recall(tmp_path: Path) -> None:
    task, source, outputs = of_images()
    found = evaluated(task, dict(source.arrays), outputs, 32)
    report = task.report(found, source, "validation")
    head, rows = report.tables["classes"]
    precision, recall, _, support = sklearn.precision_recall_fscore_support(source.arrays["label"], outputs.argmax(1))
    assert_columns(rows, precision, recall, support)
    assert len(head) == len(rows[0])
    assert sorted(pictures(report, tmp_path)) == ["confusion.png", "wrong.png"]


def test_wrong_examples_are_the_most_confident_and_only_they_are_read() -> None:
    task, source, outputs = of_images()
    whole = Blocks(source)
    found = evaluated(task, dict(source.arrays), outputs, 32)
    report = task.report(found, whole)
    missed = np.flatnonzero(outputs.argmax(1) != source.arrays["label"])
    assert 0 < len(missed) <= 24
    assert whole.reads == source.size + len(missed)  # once for the labels, which this source does not hold
    written: dict[str, object] = dict(report.files["wrong.png"].keywords)  # type: ignore[attr-defined]
    shares = [float(caption[1].split(", ")[1].rstrip("%")) for caption in written["captions"]]  # type: ignore[attr-defined]
    assert shares == sorted(shares, reverse=True)
    np.testing.assert_array_equal(
        np.sort(np.asarray(written["images"]).reshape(len(missed), -1), 0),
        np.sort(source.arrays["image"][missed].reshape(len(missed), -1), 0),
    )


def test_one_error_in_a_thousand_is_seen_beside_the_diagonal(tmp_path: Path) -> None:
    for classes in (3, 60):  # with numbers in the cells, and with a list beside
        matrix = 1000 * np.eye(classes, dtype=np.int64)
        drawn = []
        for wrong in (0, 1):
            matrix[2, 1] = wrong
            path = tmp_path / f"{classes}_{wrong}.png"
            confusion(path, matrix, [f"class {index}" for index in range(classes)])
            pixels = files.imread(path)[..., :3]
            orange = (pixels[..., 0] > 0.6) & (pixels[..., 0] - pixels[..., 2] > 0.4)
            drawn.append(int(orange.sum()))
        assert drawn[0] == 0, "what is right has another color"
        assert drawn[1] > 100, classes


def test_wrong_examples_without_an_image_are_a_table() -> None:
    rng = np.random.default_rng(0)
    specs = {"x": ArraySpec((4,), "float32"), "label": ArraySpec((), "int32", (), ("no", "yes"))}
    arrays = {"x": rng.normal(size=(30, 4)).astype(np.float32), "label": rng.integers(0, 2, 30).astype(np.int32)}
    task, source = make_task(cases.config("classification"), specs), ArraySource(arrays, specs)
    outputs = rng.normal(size=(30, 2)).astype(np.float32)
    report = task.report(evaluated(task, arrays, outputs, 8), source)
    head, rows = report.tables["most confidently wrong"]
    assert tuple(head) == ("example", "label", "predicted", "probability")
    for example, label, predicted, probability in rows:
        assert label == specs["label"].names[arrays["label"][example]]
        assert predicted == specs["label"].names[outputs[example].argmax()] != label
        odds = np.exp(outputs[example].astype(np.float64))
        assert probability == pytest.approx(odds.max() / odds.sum())
    assert [row[3] for row in rows] == sorted((row[3] for row in rows), reverse=True)
    assert "wrong.png" not in report.files


def test_the_table_of_labels_has_scikit_learns_numbers() -> None:
    rng = np.random.default_rng(0)
    names = ("red", "round", "ripe", "never")
    specs = {"x": ArraySpec((4,), "float32"), "labels": ArraySpec((4,), "int32", (), names)}
    labels = (rng.random((200, 4)) < [0.5, 0.1, 0.9, 0.0]).astype(np.int32)
    arrays = {"x": rng.normal(size=(200, 4)).astype(np.float32), "labels": labels}
    outputs = (4.0 * labels - 2 + rng.normal(scale=2.0, size=labels.shape)).astype(np.float32)
    outputs[:, 3] = -5.0
    task, source = make_task(cases.config("multilabel"), specs), ArraySource(arrays, specs)
    report = task.report(evaluated(task, arrays, outputs, 64), source)
    head, rows = report.tables["labels"]
    assert tuple(head) == ("label", "f1", "precision", "recall", "accuracy", "examples", "predicted")
    precision, recall, f1, support = sklearn.precision_recall_fscore_support(labels, outputs > 0, zero_division=0.0)
    assert_columns(rows, f1, precision, recall, (labels == (outputs > 0)).mean(0), support)
    assert rows[3][2:4] == (None, None)


@pytest.mark.parametrize(("shape", "count"), [((), 5000), ((8,), 50), ((2, 3), 50)])
def test_predictions_are_drawn_against_what_is_true(tmp_path: Path, shape: tuple[int, ...], count: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(1e3, 50.0, size=(count, *shape)).astype(np.float32)
    specs = {"x": ArraySpec((1,), "float32"), "y": ArraySpec(shape, "float32")}
    arrays = {"x": rng.normal(size=(count, 1)).astype(np.float32), "y": y}
    outputs = (y + rng.normal(0.0, 9.0, size=y.shape)).astype(np.float32).reshape(count, *(shape or (1,)))
    task, source = make_task(cases.config("regression"), specs), ArraySource(arrays, specs)
    report = task.report(evaluated(task, arrays, outputs, 64), source)
    assert list(pictures(report, tmp_path)) == ["predicted.png"]
    rows = report.tables["target"][1]
    assert len(rows) == (shape or (1,))[-1]
    if not shape:
        assert rows[0][1] == pytest.approx(sklearn.mean_absolute_error(y, outputs), rel=1e-5)
        worst = report.tables["largest errors"][1]
        assert worst[0][0] == np.abs(outputs[:, 0] - y).argmax()
        assert worst[0][3] == pytest.approx(float(outputs[worst[0][0], 0] - y[worst[0][0]]), rel=1e-6)


def test_the_tables_of_two_classes_have_scikit_learns_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    specs = {"x": ArraySpec((1,), "float32"), "label": ArraySpec((), "int32", (), ("no", "yes"))}
    labels = (rng.random(200) < 0.3).astype(np.int32)
    arrays = {"x": rng.normal(size=(200, 1)).astype(np.float32), "label": labels}
    outputs = (2.0 * labels - 1.0 + rng.normal(size=200))[:, None].astype(np.float32)
    task, source = make_task(cases.config("binary"), specs), ArraySource(arrays, specs)
    report = task.report(evaluated(task, arrays, outputs, 64), source)
    predicted = outputs[:, 0] > 0
    precision, recall, _, support = sklearn.precision_recall_fscore_support(labels, predicted)
    rows = report.tables["classes"][1]
    assert [row[0] for row in rows] == ["no", "yes"]
    assert_columns(rows, precision, recall, support)
    assert sorted(pictures(report, tmp_path)) == ["confusion.png"]


def test_the_table_of_positions_has_scikit_learns_numbers_and_images_are_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    specs = {
        "image": ArraySpec((8, 8, 3), "uint8", ("height", "width", "channel")),
        "mask": ArraySpec((8, 8, 1), "uint8", ("height", "width", "channel"), ("sky", "road", "car", "never")),
    }
    mask = rng.choice([0, 1, 2, 255], (9, 8, 8, 1)).astype(np.uint8)
    arrays = {"image": rng.integers(0, 255, (9, 8, 8, 3)).astype(np.uint8), "mask": mask}
    outputs = rng.normal(size=(9, 8, 8, 4)).astype(np.float32)
    outputs[..., 3] = -9.0
    task = make_task(cases.config("positions", ["mask"], ignore_index=255), specs)
    source = ArraySource(arrays, specs)
    report = task.report(evaluated(task, arrays, outputs, 4), source)
    counted = mask.reshape(-1) != 255
    true, predicted = mask.reshape(-1)[counted], outputs.argmax(-1).reshape(-1)[counted]
    head, rows = report.tables["classes"]
    assert tuple(head) == ("class", "iou", "f1 (dice)", "precision", "recall", "labels", "predicted")
    known = [0, 1, 2]
    precision, recall, f1, support = sklearn.precision_recall_fscore_support(true, predicted, labels=known)
    iou = sklearn.jaccard_score(true, predicted, labels=known, average=None)
    assert_columns(rows[:3], iou, f1, precision, recall, support)
    assert rows[3] == ("never", None, None, None, None, 0, 0)
    assert sorted(pictures(report, tmp_path)) == ["confusion.png", "positions.png"]


NAMES = ["$x^{$", "", "a\x00\x1b[2J\r\nb\tc\u202eb\u05d0\u65e5\udcff" + "x" * 300]


@pytest.mark.filterwarnings("error")
def test_pictures_draw_any_name_literally(tmp_path: Path) -> None:
    matrix = np.array([[1, 2, 0], [0, 1, 1], [1, 1, 1]])
    images = np.zeros((3, 4, 4, 3), np.uint8)
    classes = np.zeros((3, 4, 4), np.int32)
    values = np.arange(6.0).reshape(2, 3)
    confusion(tmp_path / "a.png", matrix, NAMES)
    confusion(tmp_path / "b.png", np.ones((30, 30), int), NAMES * 10)
    examples(tmp_path / "c.png", images, [(name, name) for name in NAMES], "title")
    for name in NAMES:
        curves(tmp_path / "g.png", {name: [Curve(name, [(0.0, 1.0), (1.0, 2.0)])]}, name)
        against(tmp_path / "h.png", name, name, {name: [(name, 1.0), ("b", 2.0)]})
    draw.segmentation(tmp_path / "e.png", images, classes, classes, NAMES)
    draw.predicted(tmp_path / "f.png", values, values, NAMES)
