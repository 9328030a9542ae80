"""What counts as equal of an export, and what a served model takes and answers."""

import numpy as np
import pytest

from runner import arrays
from runner.cli.export import raise_if_different
from runner.config.schema import TaskConfig
from runner.data.base import ArraySpec, Encoding
from runner.errors import EngineError
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.train.export.check import compare, compare_calls
from runner.train.export.signature import Served

RUN = np.array([[2.0, -30.0, 1.0], [0.5, 3.0, 0.25]], np.float32)
IMAGES = {
    "image": ArraySpec((4, 4, 1), "uint8", ("height", "width", "channel")),
    "label": ArraySpec((), "int32", names=("a", "b", "c")),
}
TABLE = {"year": ArraySpec((), "float32"), "town": ArraySpec((), "int32", names=("north", "south"))}
TABLE |= {"price": ArraySpec((), "float32")}


def served(arrays: dict[str, ArraySpec], config: TaskConfig, encoding: Encoding | None = None) -> Served:
    task = make_task(config, arrays)
    return Served(DataSpec(task.arrays, task), encoding or Encoding())


CLASSES = served(IMAGES, TaskConfig())
ANSWERS = CLASSES.answers(RUN)


def changed(**answers: np.ndarray) -> dict[str, np.ndarray]:
    return ANSWERS | answers


def test_the_answers_are_those_of_the_task_in_float64() -> None:
    assert list(ANSWERS) == ["logits", "probabilities", "class"]
    exact = np.exp(RUN.astype(np.float64)) / np.exp(RUN.astype(np.float64)).sum(1, keepdims=True)
    np.testing.assert_allclose(ANSWERS["probabilities"], exact, rtol=1e-14)
    assert ANSWERS["class"].tolist() == [0, 1]


def equal(export: dict[str, np.ndarray], run: dict[str, np.ndarray] = ANSWERS) -> bool:
    return all(difference.equal for difference in compare(run, export).values())


def test_equal_answers_pass_with_differences_of_zero() -> None:
    export = changed(probabilities=ANSWERS["probabilities"].astype(np.float32))
    logits, probabilities, class_ = compare(ANSWERS, export).values()
    assert (logits.largest, logits.scale, logits.exact) == (0.0, 30.0, False)
    assert probabilities.largest < 1e-7, "float32 beside float64"
    assert (class_.largest, class_.exact) == (0, True)
    assert equal(export)


def test_floats_must_agree_to_1e_5_of_the_largest() -> None:
    near, far = (RUN + np.array([[0, off, 0], [0, 0, 0]]) for off in (1e-4, 4e-4))
    assert equal(changed(logits=near))
    assert not equal(changed(logits=far))
    small = {"prediction": np.array([[1e-4], [-2e-4]])}
    assert equal({"prediction": small["prediction"] + 1e-9}, small)
    assert not equal({"prediction": small["prediction"] + 1e-8}, small)


def test_one_different_integer_fails_and_so_does_nan() -> None:
    assert not equal(changed(**{"class": ANSWERS["class"] + np.array([0, 1])}))
    broken = RUN.copy()
    broken[1, 1] = np.nan
    assert not equal(changed(logits=broken))


def test_answers_that_another_call_draws_again_must_only_be_finite() -> None:
    export = changed(logits=RUN + 1, **{"class": ANSWERS["class"] + 1})
    assert not compare_calls(ANSWERS, export, export)["class"].equal
    assert compare_calls(ANSWERS, export, export | {"logits": RUN + 2}) == {}
    broken = export | {"logits": np.full_like(RUN, np.nan)}
    assert not compare_calls(ANSWERS, broken, broken)["logits"].equal


def test_other_shapes_or_other_answers_are_an_error() -> None:
    with pytest.raises(EngineError, match=r"the export answers logits \[1, 3\], .*the run answers logits \[2, 3\]"):
        equal({name: answer[:1] for name, answer in ANSWERS.items()})
    with pytest.raises(EngineError, match="the export answers outputs"):
        equal({"outputs": RUN})


def test_an_export_that_differs_or_can_not_be_loaded_fails_the_command() -> None:
    good = compare(ANSWERS, ANSWERS)
    raise_if_different({"SavedModel": good, "model.keras": good})
    export = changed(logits=RUN + 1e-3, **{"class": ANSWERS["class"] + 1})
    with pytest.raises(
        EngineError,
        match=r"^model\.keras differs from the run: logits \(largest difference 1\.0e-03, largest value 30\), class ",
    ):
        raise_if_different({"SavedModel": good, "model.keras": compare(ANSWERS, export)})
    with pytest.raises(EngineError, match="install tensorflow"):
        raise_if_different({})


def test_the_record_names_categories_and_columns() -> None:
    assert CLASSES.names() == {"outputs": ["a", "b", "c"]}
    table = served(TABLE, TaskConfig("regression", target=["price"]))
    assert table.names() == {"outputs": ["price"], "town": ["north", "south"]}


def test_standardized_arrays_are_served_raw() -> None:
    encoding = Encoding(mean={"year": (2000.371234,)}, deviation={"year": (0.7,)})
    specs = {name: spec for name, spec in TABLE.items() if name != "town"}
    table = served(specs, TaskConfig("regression", target=["price"]), encoding)
    years = np.array([1999.5, 2000.25, 2001.75], np.float32)
    expected = (years.astype(np.float64) - 2000.371234) / 0.7
    found = table.model_inputs(arrays.of(np), {"year": years})
    assert found.dtype == np.float32
    # Rounding the mean to float32 first would be off by 6e-5 / 0.7.
    np.testing.assert_allclose(found, expected, rtol=3e-7)
    np.testing.assert_allclose(table.standardized({"year": years})["year"], expected, rtol=1e-7)
