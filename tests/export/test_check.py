"""What counts as equal of an export, and what a served model takes and answers."""

from __future__ import annotations

import numpy as np
import pytest

from runner import arrays
from runner.config.schema import TaskConfig
from runner.data.base import ArraySpec, Encoding
from runner.errors import EngineError
from runner.export.check import compare
from runner.export.command import raise_if_different
from runner.export.signature import Served
from runner.task.base import DataSpec
from runner.task.registry import make_task

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


def test_equal_answers_pass_with_differences_of_zero() -> None:
    found = compare(ANSWERS, changed(probabilities=ANSWERS["probabilities"].astype(np.float32)))
    assert found.equal
    assert found.examples == 2
    logits, probabilities, class_ = found.answers.values()
    assert (logits.largest, logits.scale, logits.exact) == (0.0, 30.0, False)
    assert probabilities.largest < 1e-7, "float32 beside float64"
    assert (class_.differing, class_.exact) == (0, True)


def test_floats_must_agree_to_1e_5_of_the_largest() -> None:
    near, far = (RUN + np.array([[0, off, 0], [0, 0, 0]]) for off in (1e-4, 4e-4))
    assert compare(ANSWERS, changed(logits=near)).equal
    assert not compare(ANSWERS, changed(logits=far)).equal
    top = ANSWERS["probabilities"].max()
    assert compare(ANSWERS, changed(probabilities=ANSWERS["probabilities"] + 0.9e-5 * top)).equal
    assert not compare(ANSWERS, changed(probabilities=ANSWERS["probabilities"] + 1.1e-5 * top)).equal


def test_small_numbers_are_compared_on_their_own_scale() -> None:
    small = {"prediction": np.array([[1e-4], [-2e-4]])}
    assert compare(small, {"prediction": small["prediction"] + 1e-9}).equal
    assert not compare(small, {"prediction": small["prediction"] + 1e-8}).equal


def test_one_different_integer_fails_and_so_does_nan() -> None:
    found = compare(ANSWERS, changed(**{"class": ANSWERS["class"] + np.array([0, 1])}))
    assert found.answers["class"].differing == 1
    assert not found.equal
    broken = RUN.copy()
    broken[1, 1] = np.nan
    assert not compare(ANSWERS, changed(logits=broken)).equal


def test_other_shapes_or_other_answers_are_an_error() -> None:
    with pytest.raises(EngineError, match=r"the export answers logits \[1, 3\], .*the run answers logits \[2, 3\]"):
        compare(ANSWERS, {name: answer[:1] for name, answer in ANSWERS.items()})
    with pytest.raises(EngineError, match="the export answers outputs"):
        compare(ANSWERS, {"outputs": RUN})


def test_an_export_that_differs_or_can_not_be_loaded_fails_the_command() -> None:
    good = compare(ANSWERS, ANSWERS)
    raise_if_different({"SavedModel": good, "model.keras": good})
    bad = compare(ANSWERS, changed(logits=RUN + 1e-3, **{"class": ANSWERS["class"] + 1}))
    with pytest.raises(
        EngineError,
        match=r"^model\.keras differs from the run: logits by 1\.0e-03 \(largest value 30\), class in 2 of 2 ",
    ):
        raise_if_different({"SavedModel": good, "model.keras": bad})
    with pytest.raises(EngineError, match="install tensorflow"):
        raise_if_different({})


def test_the_record_describes_inputs_and_answers() -> None:
    assert CLASSES.describe(RUN) == {
        "name": "serving_default",
        "inputs": {"image": "uint8 (batch, height=4, width=4, channel=1)"},
        "answers": {"logits": "float32 (batch, 3)", "probabilities": "float32 (batch, 3)", "class": "int64 (batch)"},
    }
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
