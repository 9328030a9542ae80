"""What a task refuses: from the config alone, and of the arrays of a dataset. Each is one line with its fix."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner import arrays
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, ArraySource, ArraySpec
from runner.errors import ConfigError
from runner.task.base import Evaluation, Task
from runner.task.registry import check, make_task, metric_directions
from tests.task.cases import config

NAMED = ArraySpec((), "int32", (), tuple("abc"))
X = ArraySpec((3,), "float32")
TWO = ArraySpec((), "int32", (), ("a", "b"))
TOKENS = ArraySpec((5,), "int32")
GRID = ArraySpec((4, 6, 1), "uint8")
OWN = "tests.task.own"
STEPS = "tests.task.own_steps"

ALONE: list[tuple[TaskConfig, str]] = [
    (config("classification", label_smoothing=1.0), "task.label_smoothing=1.0"),
    (config("classification", classes=1), "task.classes=1"),
    (config("classification", classes=["a", "a"]), "names must be unique; rename or remove one of them"),
    (config("classification", class_weights="even"), "must be balanced, a list"),
    (config("classification", class_weights={"a": -1, "b": 3.0}), "not -1; set the weight of a to 1.0"),
    (config("classification", class_weights=[1.0, -1.0]), "not -1.0; set the weight of class 1 to 1.0"),
    (config("multilabel", threshold=1.0), "task.threshold=1.0"),
    (config("classification", metrics=["accuracy"]), "task.metrics=accuracy: is not a Keras metric"),
    (config("classification", metrics=[{"AUC": 3}]), "the options of AUC must be {option: value}, not 3"),
    (config("classification", metrics=[3]), "each must be the name of a metric"),
    (config("binary", metrics=["BinaryAccuracy", "MeanIoU"]), "MeanIoU: does not fit the targets of the task"),
    (config("binary", metrics=["Recall"]), "task.metrics=Recall: there is a metric recall already; remove it, or"),
    (config("multilabel", metrics=[{"AUC": {"name": "a b"}}]), "task.metrics.AUC.name=a b"),
    (config("binary", metrics=[{"AUC": {"from_logits": True}}]), "task.metrics.AUC.from_logits=true: is set by the"),
    (config("regression", metrics=["R2Score"]), "task.metrics=R2Score: is not a Keras metric that runs have"),
    (config("binary", loss="CTC"), "task.loss=CTC: "),
    (config("classification", loss_options={"gamma": 3.0}), "task.loss_options={gamma:3.0}: needs task.loss; set"),
    (
        config("positions", loss="dice", loss_options={"from_logits": True}),
        "is a key of the task; set task.from_logits",
    ),
    (config("regression", loss="tversky", loss_options=3), "task.loss_options=3: must be a mapping"),
    (config("positions", loss="dice", label_weight="share"), "task.label_weight=share: must be null with task.loss"),
    (config("regression", loss="mean_square_error"), "did you mean mean_squared_error"),
    (config("regression", loss="huber", from_logits=True), "task.from_logits=true: must be false with task.loss"),
    (config("custom", target="no_dot"), "task._target_=no_dot"),
    (config("custom", target=f"{OWN}.loss", maximize=["near"], minimize=["near"]), "another metric is named near"),
    (config("custom", target=f"{OWN}.loss", minimize=["loss"]), "the loss is named loss;"),
    (config("step", target=f"{STEPS}.Line", minimize=["loss"]), "task.maximize=loss"),
    (config("step", target=f"{STEPS}.Line", log=["a", "a"]), "task.log=a"),
]


@pytest.mark.parametrize(("made", "told"), ALONE)
def test_an_option_that_cannot_work_is_refused_without_a_dataset(made: TaskConfig, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(made)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


FLOATS = ArraySpec((), "float32")
OF_ARRAYS: list[tuple[TaskConfig, Mapping[str, ArraySpec], str]] = [
    (
        config("regression", loss="binary_crossentropy", metrics=["F1Score"]),
        {"x": X, "target": FLOATS},
        "task.metrics.F1Score.threshold=null: the largest output is always positive, as there is one column",
    ),
    (
        config("classification", metrics=[{"Precision": {"class_id": 3}}]),
        {"x": X, "label": NAMED},
        "task.metrics.Precision.class_id=3: the target has 3 classes, 0 to 2",
    ),
    (
        config("classification", metrics=[{"AUC": {"weighted": True}}]),
        {"x": X, "label": NAMED},
        "task.metrics.AUC.weighted=true: needs weights of the examples; set task.example_weight",
    ),
    (config("classification"), {"x": X, "price": X}, "the dataset has x, price, of which none is named"),
    (config("classification", ["lable"]), {"x": X, "label": NAMED}, "did you mean label"),
    (config("classification"), {"label": NAMED}, "task.inputs=null"),
    (config("classification", ["label", "x"]), {"x": X, "label": NAMED, "z": X}, "one array of classes"),
    (config("classification"), {"x": X, "label": ArraySpec((2, 2), "int32")}, "shape [2, 2]"),
    (config("classification"), {"x": X, "label": ArraySpec((), "int32")}, "task.classes=null"),
    (config("classification", classes=4), {"x": X, "label": X}, "task.classes has 4 classes; set task.classes=3"),
    (config("classification"), {"x": X, "label": ArraySpec((), "int32", (), ("a",))}, "has one class only, a; name"),
    (config("classification", class_weights=[1.0, 2.0]), {"x": X, "label": NAMED}, "needs 3 weights, one per class"),
    (config("classification", class_weights={"d": 2.0}), {"x": X, "label": NAMED}, "unknown class; name one of a"),
    (config("classification", class_weights="balanced"), {"x": X, "label": NAMED}, "computed from the train split"),
    (config("multilabel", ["x", "label"]), {"x": X, "label": NAMED, "z": X}, "x [3], label []"),
    (config("binary"), {"x": X, "label": NAMED}, "it has 3; set task=classification"),
    (config("binary", ["x", "y"]), {"x": X, "y": X, "z": X}, "set task=multilabel"),
    (config("positions"), {"x": X, "label": NAMED}, "set task=classification, which has one class per example"),
    (config("positions"), {"x": X, "label": X}, "store integers, such as label.astype('int32')"),
    (config("positions"), {"x": X, "label": GRID}, "task.classes=null"),
    (config("positions", label_weight="w"), {"x": X, "label": GRID}, "task.label_weight=w: the dataset has no array"),
    (config("positions", label_weight="x"), {"x": X, "label": GRID, "z": X}, "one number per label, shape [4, 6]"),
    (config("regression", ["x", "y"]), {"x": X, "y": X, "z": X}, "several of one number per example"),
    (config("regression"), {"x": X, "label": NAMED}, "it has categories: a, b, ...; name another array"),
    (config("custom", target=f"{OWN}.loss", maximize=["nearer"]), {"x": X}, "task.maximize=tests.task.own.nearer"),
    (config("custom", target="tests.task.nowhere.loss"), {"x": X}, "no module tests.task.nowhere"),
    (config("custom", target=f"{OWN}.los"), {"x": X}, "did you mean loss"),
    (config("custom", target=f"{OWN}.not_a_function"), {"x": X}, "not callable"),
    (config("custom", target=f"{OWN}.of_two"), {"x": X}, "write def of_two(ops, outputs, batch)"),
    (config("regression", example_weight="w"), {"x": X, "y": X, "w": X}, "task.example_weight=w"),
    (config("regression", example_weight="v"), {"x": X, "y": X}, "task.example_weight=v: the dataset has no array"),
]


@pytest.mark.parametrize(("made", "arrays", "told"), OF_ARRAYS)
def test_a_dataset_that_does_not_fit_is_refused(made: TaskConfig, arrays: dict[str, ArraySpec], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_task(made, arrays)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_labels_outside_of_the_classes_are_refused() -> None:
    specs = {"x": X, "label": ArraySpec((), "int32")}
    labels = np.array([0, 3, 1], np.int32)
    train = ArraySource({"x": np.zeros((3, 3), np.float32), "label": labels}, specs)
    with pytest.raises(ConfigError, match="labels must be from 0 to 2, but the train split has 3"):
        make_task(config("classification", classes=3), specs, train)
    train.arrays["label"][0] = -1  # type: ignore[index]
    with pytest.raises(ConfigError, match="labels must be from 0 to 3, but the train split has -1"):
        make_task(config("classification"), specs, train)


@pytest.mark.parametrize(
    ("name", "labels", "told"),
    [
        ("classification", [[0.5, 0.5], [1.0, 1.0]], "but example 1 of the train split has 1, 1"),
        ("classification", [[0.5, 0.5], [1.5, -0.5]], "sum to 1, but example 1 of the train split has 1.5, -0.5"),
        ("classification", [[0.5, 0.5], [float("nan"), 0.5]], "but example 1 of the train split has nan, 0.5"),
        ("classification", [0, 450_000], "2 examples have integers up to 450,000; set task=regression"),
        ("binary", [0, 2], "a 0 or 1 per label, but the train split has 2"),
        ("multilabel", [[1, 0], [-1, 1]], "a 0 or 1 per label, but the train split has -1"),
    ],
)
def test_targets_that_the_loss_does_not_take_are_refused(name: str, labels: list[Any], told: str) -> None:
    label = np.array(labels, np.float32 if isinstance(labels[0], list) and name == "classification" else np.int32)
    specs = {"x": X, "label": ArraySpec(label.shape[1:], str(label.dtype))}
    with pytest.raises(ConfigError) as refused:
        make_task(config(name), specs, ArraySource({"x": np.zeros((2, 3), np.float32), "label": label}, specs))
    assert told in str(refused.value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_whole_floats_are_class_indices_and_fractions_are_rejected(dtype: str, shape: tuple[int, ...]) -> None:
    specs = {"x": X, "label": ArraySpec(shape, dtype)}

    def made(*labels: float) -> Task:
        arrays = {"x": np.zeros((len(labels), 3), np.float32), "label": np.array(labels, dtype).reshape(-1, *shape)}
        return make_task(config("classification", class_weights="balanced"), specs, ArraySource(arrays, specs))

    task = made(0.0, 2.0, 1.0, 2.0)
    assert task.outputs.names == ("0", "1", "2")
    assert task.constants["class_weights"] == pytest.approx([4 / 3, 4 / 3, 2 / 3])
    outputs = np.eye(3, dtype=np.float32)
    batch = {"label": np.array([0.0, 2.0, 2.0], dtype).reshape(-1, *shape), "weight": np.ones(3, np.float32)}
    assert np.asarray(task.metrics(arrays.of(np), outputs, batch)["accuracy"]).tolist() == [1.0, 0.0, 1.0]
    with pytest.raises(ConfigError, match=r"one example has 0\.5; set task=regression"):
        made(0.0, 0.5, 1.0)
    with pytest.raises(ConfigError, match=r"task\.target=label: .*but the train split has -1"):
        made(0.0, -1.0, 1.0)


def test_labels_of_positions_that_mean_no_class_are_told_how_they_are_ignored() -> None:
    specs = {"x": X, "label": ArraySpec((2,), "uint8")}
    source = ArraySource({"x": np.zeros((2, 3), np.float32), "label": np.array([[0, 1], [2, 255]], np.uint8)}, specs)
    with pytest.raises(ConfigError, match=r"has 255; set task\.ignore_index=255 if it means no class"):
        make_task(config("positions", classes=3), specs, source)
    assert make_task(config("positions", ignore_index=255), specs, source).outputs.units == 3
    source.arrays["label"][:] = 255  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"task\.ignore_index=255: must leave labels to count"):
        make_task(config("positions", classes=3, ignore_index=255), specs, source)


def test_classes_that_nobody_names_are_counted_once() -> None:
    specs = {"x": X, "label": ArraySpec((), "int64")}
    train = ArraySource({"x": np.zeros((3, 3), np.float32), "label": np.array([0, 6, 1])}, specs)
    task = make_task(config("classification"), specs, train)
    assert task.outputs.units == 7
    train.arrays["label"][1] = 2  # type: ignore[index]
    assert make_task(config("classification"), specs, train, task.constants).outputs.units == 7


CHECKED: list[tuple[TaskConfig, Mapping[str, ArraySpec], list[list[int | None]], list[list[int | None]]]] = [
    (config("classification"), {"x": X, "label": NAMED}, [[None, 3], [8, 3]], [[None, 4], [8, 3, 1], [8]]),
    (config("binary"), {"x": X, "label": TWO}, [[None, 1], [8, 1]], [[None, 2], [None]]),
    (config("multilabel"), {"x": X, "labels": ArraySpec((5,), "int32")}, [[None, 5]], [[None, 1], [None, 5, 1]]),
    (
        config("positions", classes=3),
        {"x": X, "label": GRID},
        [[None, 4, 6, 3], [8, None, None, 3]],
        [[None, 3], [None, 4, 6, 1], [None, 6, 4, 3], [None, 4, 6, 3, 1]],
    ),
    (config("regression"), {"x": X, "y": ArraySpec((), "float32")}, [[None, 1]], [[None], [None, 2]]),
    (config("regression"), {"x": X, "y": ArraySpec((2, 3), "float32")}, [[None, 2, 3]], [[None, 6], [None, 3, 2]]),
]


@pytest.mark.parametrize(("made", "arrays", "good", "bad"), CHECKED)
def test_outputs_of_another_shape_are_refused(
    made: TaskConfig, arrays: dict[str, ArraySpec], good: list[list[int | None]], bad: list[list[int | None]]
) -> None:
    task = make_task(made, arrays)
    for shape in good:
        task.check({"outputs": shape})
    for shape in bad:
        with pytest.raises(ConfigError, match=r"in a layer of that (size|shape)"):
            task.check({"outputs": shape})


def custom(name: str = "loss", **options: Any) -> Any:
    made = config("custom", target=f"{OWN}.{name}", **options)
    return make_task(made, {"x": X, "y": ArraySpec((), "float64")})


def test_a_users_loss_and_metrics_are_computed_and_known_by_name() -> None:
    task = custom(maximize=["near"], minimize=[f"{OWN}.error"])
    assert task.directions == {"loss": "minimize", "near": "maximize", "error": "minimize"}
    assert metric_directions(config("custom", target=f"{OWN}.loss", maximize=["near"])) == {
        "loss": "minimize",
        "near": "maximize",
    }
    ops, outputs = arrays.of(np), np.array([[1.0], [2.0], [np.nan]], np.float32)
    batch = {"x": np.zeros((3, 3), np.float32), "y": np.array([1.25, 0.0, 5.0])}
    batch |= {WEIGHT: np.array([1, 1, 0], np.float32)}
    np.testing.assert_array_equal(task.loss(ops, outputs, batch), [0.25, 2.0, 9.0])
    totals = {name: np.asarray(value, np.float64) for name, value in task.totals(ops, outputs, batch).items()}
    assert task.summary(totals) == {"near": 0.5, "error": 1.125}
    assert task.outputs.units == 1
    assert task.input_names == ("x",)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("whole", "it returns shape [], but must return one number per example"),
        ("one_for_all", "it returns shape [1], but must return one number per example"),
        ("broken", "it raised KeyError: 'no such array'"),
    ],
)
def test_a_users_function_that_fails_is_one_line(name: str, told: str) -> None:
    batch = {"y": np.zeros(2), WEIGHT: np.ones(2, np.float32)}
    with pytest.raises(ConfigError) as refused:
        custom(name).loss(arrays.of(np), np.zeros((2, 1), np.float32), batch)
    assert str(refused.value).startswith(f"task._target_={OWN}.{name}: {told}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True), "as after a softmax"),
        (lambda x: np.eye(8, dtype=np.float32)[x.argmax(1)], "as after a softmax"),  # a softmax at its limit
        (lambda x: x, ""),
        (np.abs, ""),
        (np.zeros_like, ""),
        (lambda x: x[:0], ""),
    ],
)
def test_outputs_that_are_no_logits_are_told(outputs: Callable[[np.ndarray], np.ndarray], told: str) -> None:
    specs = {"x": X, "label": ArraySpec((), "int32", (), tuple("abcdefgh"))}
    drawn = outputs(np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32))
    found = make_task(config("classification"), specs).warnings(Evaluation({}, 20, {}, drawn))
    assert (told in found[0]) if told else not found


@pytest.mark.parametrize("name", ["classification", "multilabel", "positions", "binary"])
def test_outputs_that_are_no_probabilities_are_reported(name: str) -> None:
    label = (
        ArraySpec((), "int32", (), tuple("ab")) if name in ("classification", "binary") else ArraySpec((2,), "int32")
    )
    options = {"classes": 2} if name == "positions" else {}
    logits = np.random.default_rng(0).normal(size=(20, 2, 2) if name == "positions" else (20, 2)).astype(np.float32)
    chances = 1.0 / (1.0 + np.exp(-logits))
    if name in ("classification", "positions"):
        chances = chances / chances.sum(-1, keepdims=True)
    specs = {"x": X, "label": label}
    of_chances = make_task(config(name, from_logits=False, **options), specs)
    of_logits = make_task(config(name, **options), specs)
    from_logits, from_chances = Evaluation({}, 20, {}, logits), Evaluation({}, 20, {}, chances)
    assert not of_chances.warnings(from_chances)
    assert not of_logits.warnings(from_logits)
    (warning,) = of_chances.warnings(from_logits)
    assert warning.startswith("task.from_logits=false, but the model's outputs are not from 0 to 1")
    (warning,) = of_logits.warnings(from_chances)
    assert "set task.from_logits=false" in warning


def test_an_export_of_probabilities_has_no_logits() -> None:
    ops = arrays.of(np)
    shares = np.array([[0.2, 0.8]], np.float32)
    for name in ("classification", "multilabel"):
        label = ArraySpec((), "int32", (), tuple("ab")) if name == "classification" else ArraySpec((2,), "int32")
        outputs = make_task(config(name, from_logits=False), {"x": X, "label": label}).predictions(ops, shares)
        assert "logits" not in outputs
        np.testing.assert_array_equal(outputs["probabilities"], shares)


def test_scaling_of_images_that_a_dataset_does_not_have_is_rejected() -> None:
    specs = {"x": X, "label": NAMED}
    make_task(replace(config("classification"), scale_images=False), specs)
    with pytest.raises(ConfigError, match=r"task\.scale_images=true: has no effect, as no input is an image of bytes"):
        make_task(replace(config("classification"), scale_images=True), specs)
