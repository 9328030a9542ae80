"""Metrics of whole evaluations: those of scikit-learn, exact over every example whatever the batches are."""

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from sklearn import metrics as sklearn

from runner import arrays
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, ArraySource, ArraySpec
from runner.task.base import Evaluation, Task
from runner.task.registry import make_task, metric_directions, step_metric_names
from tests.task import cases

OPS = arrays.of(np)
SPECS = {"x": ArraySpec((1,), "float32")}
ODD_BATCHES = (7, 1000)  # examples of the batches that a split is cut into


def evaluated(task: Task, arrays: cases.Arrays, outputs: np.ndarray, batch_size: int) -> Evaluation:
    """Returns the evaluation of whole arrays in batches, the last one padded with outputs of NaN."""
    sums: dict[str, np.ndarray] = {}
    for at in range(0, len(outputs), batch_size):
        rows = np.arange(at, min(at + batch_size, len(outputs)))
        real = len(rows)
        rows = np.concatenate([rows, np.zeros(batch_size - real, np.int64)])
        batch = {name: array[rows] for name, array in arrays.items()}
        batch[WEIGHT] = (np.arange(batch_size) < real).astype(np.float32)
        given = np.where(batch[WEIGHT].reshape(-1, *[1] * (outputs.ndim - 1)) > 0, outputs[rows], np.nan)
        with np.errstate(invalid="ignore"):
            totals = task.totals(OPS, given.astype(np.float32), batch)
        totals = {name: np.asarray(total) for name, total in totals.items()}
        assert {total.dtype for total in totals.values()} == {np.dtype("float32")}
        addends = task.addends({name: total.astype(np.float64) for name, total in totals.items()})
        sums = task.joined(sums, addends) if sums else addends
    found = task.summary(sums)
    assert ["loss", *found] == list(task.directions)
    return Evaluation({"loss": 0.0, **found}, len(outputs), sums, outputs)


def classification(labels: np.ndarray, names: str, **options: object) -> Task:
    specs = SPECS | {"label": ArraySpec(labels.shape[1:], str(labels.dtype), (), tuple(names))}
    return make_task(cases.config("classification", **options), specs)


@pytest.mark.parametrize("batch_size", ODD_BATCHES)
def test_accuracy_and_the_confusion_matrix_are_scikit_learns(batch_size: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice([0, 1, 3, 4], 333).astype(np.int32)  # class c is missing, and predicted
    logits = rng.normal(size=(333, 5)).astype(np.float32)
    task = classification(labels, "abcde")
    found = evaluated(task, {"label": labels}, logits, batch_size)
    assert found.metrics["accuracy"] == sklearn.accuracy_score(labels, logits.argmax(1))
    matrix = sklearn.confusion_matrix(labels, logits.argmax(1), labels=range(5))
    np.testing.assert_array_equal(found.totals["confusion"], matrix)


def test_many_classes_are_counted_without_a_matrix() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 1500, 400).astype(np.int32)
    logits = rng.normal(size=(400, 1500)).astype(np.float32)
    logits[np.arange(200), labels[:200]] = 9.0
    task = make_task(cases.config("classification", classes=1500), SPECS | {"label": ArraySpec((), "int32")})
    found = evaluated(task, {"label": labels}, logits, 128)
    assert "confusion" not in found.totals
    assert found.metrics["accuracy"] == sklearn.accuracy_score(labels, logits.argmax(1))
    head, rows = task.report(found, source({"label": labels, "x": labels[:, None]}, task)).tables["classes"]
    assert tuple(head) == ("class", "precision", "recall", "examples", "predicted")
    assert sum(row[3] for row in rows) == 400


@pytest.mark.parametrize("batch_size", ODD_BATCHES)
@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_f1_exact_match_and_shares_are_scikit_learns(batch_size: int, threshold: float) -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((333, 4)) < [0.5, 0.1, 0.9, 0.0]).astype(np.int32)  # nobody has the last
    logits = rng.normal(size=(333, 4)).astype(np.float32)
    logits[:, 3] = -9.0  # nor is it predicted
    specs = SPECS | {"labels": ArraySpec((4,), "int32")}
    task = make_task(cases.config("multilabel", threshold=threshold), specs)
    found = evaluated(task, {"labels": labels}, logits, batch_size).metrics
    predicted = (1 / (1 + np.exp(-logits.astype(np.float64))) > threshold).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the label without examples, whose F1 is taken for 0
        wanted = {f"f1_{kind}": sklearn.f1_score(labels, predicted, average=kind) for kind in ("micro", "macro")}
    wanted |= {"exact_match": sklearn.accuracy_score(labels, predicted), "accuracy": (labels == predicted).mean()}
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


def binary(labels: np.ndarray, **options: object) -> Task:
    return make_task(cases.config("binary", **options), SPECS | {"label": ArraySpec((), str(labels.dtype))})


@pytest.mark.parametrize("batch_size", ODD_BATCHES)
def test_scores_of_two_classes_are_scikit_learns(batch_size: int) -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(333) < 0.3).astype(np.int32)
    logits = (rng.normal(size=(333, 1)) + labels[:, None]).astype(np.float32)
    task = binary(labels, threshold=0.4)
    found = evaluated(task, {"label": labels}, logits, batch_size).metrics
    chances = 1 / (1 + np.exp(-logits[:, 0].astype(np.float64)))
    for name in ("precision", "recall", "f1", "accuracy"):
        score = getattr(sklearn, f"{name}_score")(labels, chances > 0.4)
        assert found[name] == pytest.approx(score, rel=1e-12), name


def positions(shape: Sequence[int], **options: object) -> Task:
    specs = SPECS | {"label": ArraySpec(tuple(shape), "uint8", (), tuple("abcde"))}
    return make_task(cases.config("positions", **options), specs)


@pytest.mark.parametrize("batch_size", ODD_BATCHES)
@pytest.mark.parametrize("shape", [(4, 3, 1), (7,)])
def test_scores_of_positions_are_scikit_learns_without_ignored_labels(batch_size: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice([0, 1, 3, 255], (50, *shape)).astype(np.uint8)
    places = shape[:-1] if shape[-1] == 1 else shape
    logits = rng.normal(size=(50, *places, 5)).astype(np.float32)
    logits[..., 4] = -9.0  # neither labeled nor predicted, so no class of the means
    task = positions(shape, ignore_index=255)
    found = evaluated(task, {"label": labels}, logits, batch_size)
    counted = labels.reshape(-1) != 255
    true = labels.reshape(-1)[counted]
    predicted = logits.argmax(-1).reshape(-1)[counted]
    np.testing.assert_array_equal(
        found.totals["confusion"], sklearn.confusion_matrix(true, predicted, labels=range(5))
    )
    known = range(4)
    assert found.metrics["accuracy"] == pytest.approx(sklearn.accuracy_score(true, predicted), rel=1e-12)
    for name, score in (("mean_iou", sklearn.jaccard_score), ("f1_macro", sklearn.f1_score)):
        theirs = score(true, predicted, labels=known, average="macro", zero_division=0)
        assert found.metrics[name] == pytest.approx(theirs, rel=1e-12), name
    batch = {"label": labels, WEIGHT: np.ones(50, np.float32)}
    np.testing.assert_array_equal(task.weights(batch), counted.reshape(50, -1).sum(1))


def test_many_classes_of_positions_are_counted_without_a_matrix() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 80, (40, 6)).astype(np.uint8)
    logits = rng.normal(size=(40, 6, 80)).astype(np.float32)
    np.put_along_axis(logits[:20], labels[:20, :, None].astype(np.int64), 9.0, -1)
    specs = SPECS | {"label": ArraySpec((6,), "uint8")}
    found = evaluated(make_task(cases.config("positions", classes=80), specs), {"label": labels}, logits, 16)
    assert "confusion" not in found.totals
    theirs = sklearn.jaccard_score(labels.reshape(-1), logits.argmax(-1).reshape(-1), average="macro")
    assert found.metrics["mean_iou"] == pytest.approx(theirs, rel=1e-12)


def test_weights_of_labels_weigh_the_scores_of_positions() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, (30, 6)).astype(np.uint8)
    share = rng.integers(0, 3, (30, 6)).astype(np.float32)
    logits = rng.normal(size=(30, 6, 5)).astype(np.float32)
    specs = {"x": SPECS["x"], "label": ArraySpec((6,), "uint8"), "share": ArraySpec((6,), "float32")}
    task = make_task(cases.config("positions", classes=5, label_weight="share"), specs)
    assert task.input_names == ("x",)
    found = evaluated(task, {"label": labels, "share": share}, logits, 8).metrics
    true, predicted = labels.reshape(-1), logits.argmax(-1).reshape(-1)
    theirs = sklearn.jaccard_score(true, predicted, average="macro", sample_weight=share.reshape(-1))
    assert found["mean_iou"] == pytest.approx(theirs, rel=1e-12)


def regression(shape: Sequence[int], **options: object) -> Task:
    return make_task(cases.config("regression", **options), SPECS | {"y": ArraySpec(tuple(shape), "float32")})


@pytest.mark.parametrize("batch_size", ODD_BATCHES)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_mae_rmse_and_r2_are_scikit_learns(batch_size: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=(333, *shape)).astype(np.float32)
    outputs = (y + rng.normal(size=y.shape)).astype(np.float32).reshape(333, -1)
    found = evaluated(regression(shape), {"y": y}, outputs, batch_size).metrics
    true, given = y.reshape(333, -1).astype(np.float64), outputs.astype(np.float64)
    assert found["mae"] == pytest.approx(sklearn.mean_absolute_error(true, given), rel=1e-6)
    assert found["rmse"] == pytest.approx(np.sqrt(sklearn.mean_squared_error(true, given)), rel=1e-6)
    assert found["r2"] == pytest.approx(sklearn.r2_score(true, given), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("batch_size", ODD_BATCHES)
@pytest.mark.parametrize(("offset", "spread"), [(1e6, 0.8), (-1.7e9, 3e7)])
@pytest.mark.parametrize("fits", [True, False])
def test_r2_of_targets_whose_spread_is_tiny_beside_their_mean(
    batch_size: int, offset: float, spread: float, *, fits: bool
) -> None:
    """Rows of one order: each batch has a mean of its own. A model that does not fit answers 0."""
    rng = np.random.default_rng(0)
    y = np.sort(offset + rng.uniform(-spread, spread, 500)).astype(np.float32)
    outputs = (y + rng.normal(0, spread / 50, 500)).astype(np.float32)[:, None] * np.float32(fits)
    specs = SPECS | {"y": ArraySpec((), "float32")}
    task = make_task(cases.config("regression"), specs)
    found = evaluated(task, {"y": y}, outputs, batch_size).metrics
    true = y.astype(np.float64)
    given = outputs[:, 0].astype(np.float64)
    assert found["r2"] == pytest.approx(sklearn.r2_score(true, given), rel=1e-5)
    assert found["rmse"] == pytest.approx(np.sqrt(sklearn.mean_squared_error(true, given)), rel=1e-5)


@pytest.mark.parametrize("value", [0.0, 3.7, -1e6])
@pytest.mark.parametrize("batch_size", [7, 1000])
def test_r2_of_a_constant_target_is_scikit_learns(value: float, batch_size: int) -> None:
    y = np.full(40, value, np.float32)
    task = regression(())
    assert evaluated(task, {"y": y}, y[:, None], batch_size).metrics["r2"] == 1.0
    assert evaluated(task, {"y": y}, y[:, None] + 1.0, batch_size).metrics["r2"] == 0.0


def source(arrays: cases.Arrays, task: Task) -> ArraySource:
    return ArraySource(arrays, {name: task.arrays[name] for name in arrays})


def test_balanced_class_weights_are_scikit_learns_and_are_kept() -> None:
    from sklearn.utils import compute_class_weight

    labels = np.array([0] * 10 + [1] * 30 + [3] * 60, np.int32)
    specs = SPECS | {"label": ArraySpec((), "int32", (), tuple("abcd"))}
    train = ArraySource({"label": labels, "x": labels[:, None].astype(np.float32)}, specs)
    task = make_task(cases.config("classification", class_weights="balanced"), specs, train)
    there = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    assert task.constants["class_weights"] == pytest.approx([there[0], there[1], 1.0, there[2]])
    other = ArraySource({name: array[:10] for name, array in train.arrays.items()}, specs)
    again = make_task(cases.config("classification", class_weights="balanced"), specs, other, task.constants)
    assert again.constants == task.constants


@pytest.mark.parametrize(
    "config", [*map(cases.config, ("classification", "binary", "multilabel", "positions", "regression"))]
)
def test_metrics_are_known_from_the_config_alone(config: TaskConfig) -> None:
    targets = {
        "classification": ArraySpec((), "int32", (), tuple("abcde")),
        "binary": ArraySpec((), "int32"),
        "multilabel": ArraySpec((3,), "int32"),
        "positions": ArraySpec((3,), "int32", (), tuple("abc")),
        "regression": ArraySpec((), "float32"),
    }
    task = make_task(config, SPECS | {"y": targets[config.name]})
    assert metric_directions(config) == task.directions
    assert step_metric_names(config) == tuple(task.step_metrics)
    assert set(task.step_metrics) < set(task.directions)


def test_metrics_and_predictions_of_logits_are_those_of_their_probabilities() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random((40, 3)) < 0.5).astype(np.float32)
    outputs = rng.normal(size=(40, 3)).astype(np.float32)
    task = regression((3,), loss="binary_crossentropy", from_logits=True)
    chances = 1 / (1 + np.exp(-outputs.astype(np.float64)))
    found = evaluated(task, {"y": y}, outputs, 16).metrics
    assert found["mae"] == pytest.approx(np.abs(chances - y).mean(), rel=1e-6)
    assert found["r2"] == pytest.approx(sklearn.r2_score(y, chances), rel=1e-5)
    np.testing.assert_allclose(task.predictions(OPS, outputs)["prediction"], chances, rtol=1e-5)
