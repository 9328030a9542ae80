"""Several outputs: each is judged as its task alone would, under its name, and the loss is their weighted sum."""

from typing import Any

import numpy as np
import pytest

from runner import arrays
from runner.config.build import build
from runner.config.options import arranged
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, ArraySource, ArraySpec
from runner.errors import ConfigError
from runner.task import registry
from runner.task.base import LOSS, Evaluation, Task
from runner.task.several import Several

OPS = arrays.of(np)
SPECS = {
    "x": ArraySpec((3,), "float32"),
    "age": ArraySpec((), "float32"),
    "sick": ArraySpec((), "int32"),
    "tags": ArraySpec((4,), "int32"),
    "own": ArraySpec((), "float32"),
}
OUTPUTS: dict[str, Any] = {
    "age": {"name": "regression", "weight": 0.25, "example_weight": "own"},
    "gender": {"name": "binary", "target": "sick", "weight": 3.0},
    "tags": {"name": "positions", "classes": 3, "ignore_index": -1, "weight": 0.5},
}
REAL, PADDED = 6, 2


def config(outputs: Any = None, **keys: Any) -> TaskConfig:
    """Returns the config of a task, as its YAML is converted."""
    content = {"name": "several", "outputs": OUTPUTS if outputs is None else outputs, **keys}
    return build(TaskConfig, arranged("task", content), "task")


def task(outputs: Any = None, **keys: Any) -> Task:
    made = config(outputs, **keys)
    registry.check(made)
    return registry.make_task(made, SPECS)


def alone(name: str) -> Task:
    content = {key: value for key, value in OUTPUTS[name].items() if key != "weight"}
    content.setdefault("target", name)
    return registry.make_task(build(TaskConfig, arranged("task", {"inputs": ["x"], **content}), "task"), SPECS)


def batch() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns a batch and a model's outputs; the last rows are padding, with outputs of NaN."""
    rng = np.random.default_rng(0)
    size = REAL + PADDED
    tags = rng.integers(0, 3, (size, 4)).astype(np.int32)
    tags[0, 1:] = -1
    tags[3, 2] = -1
    made = {
        "x": rng.normal(size=(size, 3)).astype(np.float32),
        "age": rng.normal(size=size).astype(np.float32),
        "sick": rng.integers(0, 2, size).astype(np.int32),
        "tags": tags,
        "own": rng.uniform(0.5, 2.0, size).astype(np.float32),
        WEIGHT: np.r_[np.ones(REAL), np.zeros(PADDED)].astype(np.float32),
    }
    outputs = {
        "age": rng.normal(size=(size, 1)).astype(np.float32),
        "gender": rng.normal(size=(size, 1)).astype(np.float32),
        "tags": rng.normal(size=(size, 4, 3)).astype(np.float32),
    }
    for output in outputs.values():
        output[REAL:] = np.nan
    return made, outputs


def mean_alone(name: str) -> float:
    made, outputs = batch()
    one = alone(name)
    with np.errstate(invalid="ignore"):
        loss_b = one.loss(OPS, outputs[name], made)[:REAL]
    return float(loss_b.sum() / one.weights(made).sum())


def test_the_loss_is_the_weighted_sum_of_the_mean_losses_of_each_task_alone() -> None:
    made, outputs = batch()
    both = task()
    with np.errstate(invalid="ignore"):
        loss_b = both.loss(OPS, outputs, made)
        metrics = both.metrics(OPS, outputs, made)
    assert both.weights(made).tolist() == [1.0] * REAL + [0.0] * PADDED
    expected = 0.25 * mean_alone("age") + 3.0 * mean_alone("gender") + 0.5 * mean_alone("tags")
    np.testing.assert_allclose(loss_b[:REAL].sum() / REAL, expected, rtol=1e-6)
    for name in OUTPUTS:
        np.testing.assert_allclose(metrics[f"{name}_loss"][:REAL].mean(), mean_alone(name), rtol=1e-6)


def test_metrics_of_a_step_and_of_an_evaluation_have_the_names_of_their_outputs() -> None:
    made, outputs = batch()
    both = task()
    names = ["age_loss", "gender_loss", "tags_loss", "age_mae", "gender_accuracy", "tags_accuracy"]
    assert list(both.step_metrics) == names
    assert list(both.directions)[:7] == [LOSS, *names[:3], "age_mae", "age_rmse", "age_r2"]
    assert both.directions["gender_f1"] == "maximize"
    assert both.directions["tags_loss"] == "minimize"
    with np.errstate(invalid="ignore"):
        # In two batches: means over all examples are no means of the batches' means.
        sums: dict[str, Any] = {}
        for rows in (slice(0, 1), slice(1, None)):
            part = {name: array[rows] for name, array in made.items()}
            totals = both.totals(OPS, {name: array[rows] for name, array in outputs.items()}, part)
            addends = both.addends({name: value.astype(np.float64) for name, value in totals.items()})
            sums = both.joined(sums, addends) if sums else addends
    summary = both.summary(sums)
    assert list(summary) == list(both.directions)[1:]
    for name in OUTPUTS:
        np.testing.assert_allclose(summary[f"{name}_loss"], mean_alone(name), rtol=1e-6)
        with np.errstate(invalid="ignore"):
            own = alone(name).summary(alone(name).addends(alone(name).totals(OPS, outputs[name], made)))
        for metric, value in own.items():
            np.testing.assert_allclose(summary[f"{name}_{metric}"], value, rtol=1e-6, err_msg=f"{name}_{metric}")
    expected = 0.25 * mean_alone("age") + 3.0 * mean_alone("gender") + 0.5 * mean_alone("tags")
    # The sums of the batches' losses are of no use here: each batch counts another number of labels.
    mean = both.mean_loss(sums | {LOSS: np.asarray(np.nan), WEIGHT: np.asarray(float(REAL))})
    np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_targets_and_weights_are_no_inputs_and_an_output_without_a_target_has_the_array_of_its_name() -> None:
    both = task()
    assert both.input_names == ("x",)
    assert set(both.arrays) == set(SPECS)
    assert config().target == ["age", "sick", "tags"]
    assert {name: spec.units for name, spec in both.outputs.by_name.items()} == {"age": 1, "gender": 1, "tags": 3}
    short = task({"age": "regression", "sick": "binary"}, inputs="x")
    assert isinstance(short, Several)
    assert short.loss_weights == {"age": 1.0, "sick": 1.0}


def test_each_task_gets_its_own_constants_back() -> None:
    outputs = {"age": {"name": "regression"}, "sick": {"name": "binary", "class_weights": "balanced"}}
    made = config(outputs, inputs=["x"])
    train = ArraySource({"age": np.arange(4.0, dtype=np.float32), "sick": np.array([0, 0, 0, 1], np.int32)}, SPECS)
    first = registry.make_task(made, SPECS, train)
    assert first.constants["sick/class_weights"] == pytest.approx([2 / 3, 2.0])
    again = registry.make_task(made, SPECS, None, first.constants)
    assert again.constants == first.constants
    values = again.predictions(OPS, {"age": np.zeros((2, 1)), "sick": np.zeros((2, 1))})
    assert list(values) == ["age", "sick_logits", "sick_probabilities"]


def test_reports_are_those_of_each_output() -> None:
    made, outputs = batch()
    both = task()
    rows = {name: array[:REAL] for name, array in made.items()}
    kept = {name: array[:REAL] for name, array in outputs.items()}
    totals = both.addends({key: np.asarray(value, np.float64) for key, value in both.totals(OPS, kept, rows).items()})
    metrics = {LOSS: 1.0, **both.summary(totals)}
    evaluation = Evaluation(metrics, REAL, totals, np.zeros((0,)), kept)
    report = both.report(evaluation, ArraySource(rows, SPECS))
    assert list(report.files) == ["age_predicted.png", "gender_confusion.png", "tags_confusion.png"]
    assert list(report.tables)[:2] == ["age: target", "age: largest errors"]
    columns, (row,) = report.tables["age: target"]
    np.testing.assert_allclose(dict(zip(columns, row, strict=True))["mae"], metrics["age_mae"])


INVALID: list[tuple[Any, str]] = [
    ({}, "task.outputs={}: needs at least two outputs"),
    ({"age": "regression"}, "needs at least two outputs of the model, but has 1"),
    ({"age": "regression", "sick": "binery"}, "task.outputs.sick.name=binery: must be one of"),
    ({"age": "regression", "sick": {"target": "sick"}}, "task.outputs.sick={target:sick}: needs the task"),
    ({"age": "regression", "sick": {"name": "binary", "losss": 1}}, "task.outputs.sick.losss: unknown key"),
    (
        {"age": "regression", "sick": {"name": "binary", "weight": -1}},
        "task.outputs.sick.weight=-1.0: must be at least 0",
    ),
    (
        {"age": {"name": "regression", "weight": 0}, "sick": {"name": "binary", "weight": 0}},
        "at least one output must have a weight above 0",
    ),
    (
        {"age": "regression", "sick": {"name": "binary", "threshold": 2}},
        "task.outputs.sick.threshold=2.0: must be above 0",
    ),
    ({"age": {"name": "regression", "loss": "mse"}, "sick": "binary"}, "task.outputs.age.loss=mse: must be one of"),
    ({"age": "regression", "sick": "language_model"}, "task.outputs.sick.name=language_model: can't judge one of"),
    ({"age": "regression", "sick": {"name": "several", "outputs": {}}}, "can't judge one of several outputs"),
    (
        {"sick": {"name": "binary", "metrics": ["Recall"]}, "age": "regression"},
        "task.outputs.sick.metrics=Recall: there is a metric recall already; remove it, or give it a name",
    ),
    ({"a b": "regression", "sick": "binary"}, "a name must consist of letters"),
    (
        {"age": {"name": "custom", "_target_": "no_such_package.loss"}, "sick": "binary"},
        "task.outputs.age._target_=no_such_package.loss: there is no module",
    ),
]


@pytest.mark.parametrize(("outputs", "message"), INVALID)
def test_outputs_that_do_not_fit_are_rejected_with_their_keys(outputs: Any, message: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        registry.check(config(outputs))
    assert message in str(rejected.value)
    assert "\n" not in str(rejected.value)


def test_two_metrics_of_one_name_are_rejected() -> None:
    # `a_b` has `a_b_loss`, and so has the metric `b_loss` of the output `a`.
    outputs = {"a": {"name": "custom", "_target_": "tests.task.own.loss", "minimize": ["b_loss"]}, "a_b": "regression"}
    with pytest.raises(ConfigError, match=r"task\.outputs\.a_b=regression: has a metric a_b_loss, as a has"):
        registry.check(config(outputs))


def test_the_targets_are_those_of_the_outputs() -> None:
    with pytest.raises(ConfigError, match=r"task.target=\[age\]: can't be set with task.outputs"):
        config(target="age")
    with pytest.raises(
        ConfigError, match=r"task.outputs.old.target=old: the dataset has no array 'old' .its arrays: x, age"
    ):
        task({"old": "regression", "sick": "binary"})
    with pytest.raises(ConfigError, match=r"set task.outputs.sick.name=classification"):
        registry.make_task(config({"age": "regression", "sick": {"name": "regression"}}), SPECS | {"sick": NAMED})
    with pytest.raises(ConfigError, match=r"task.outputs.age.example_weight=ow.*did you mean own"):
        task({"age": {"name": "regression", "example_weight": "ow"}, "sick": "binary"})


NAMED = ArraySpec((), "int32", names=("a", "b", "c"))


def test_the_outputs_of_the_model_are_those_of_the_config() -> None:
    both = task({"age": "regression", "sick": "binary"})
    both.check({"sick": (None, 1), "age": (None, 1)})
    invalid: list[tuple[dict[str, tuple[int | None, ...]], str]] = [
        ({"age": (None, 1), "sik": (None, 1)}, "no output sick; it has age, sik; did you mean sik?"),
        ({"age": (None, 1), "sick": (None, 1), "extra": (None, 2)}, "its output extra has no task"),
        ({"0": (None, 1), "1": (None, 1)}, "the model has no output age; it has 0, 1"),
        ({"outputs": (None, 1)}, "the model has no output age; it has outputs"),
        ({"age": (None, 3), "sick": (None, 1)}, "the model's output age must be [batch, 1]"),
    ]
    for shapes, message in invalid:
        with pytest.raises(ConfigError) as rejected:
            both.check(shapes)
        assert message in str(rejected.value)
