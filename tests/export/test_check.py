from __future__ import annotations

import numpy as np
import pytest

from runner.config.errors import EngineError
from runner.export.check import compare, softmax
from runner.export.command import raise_if_different

RUN = np.array([[2.0, -30.0, 1.0], [0.5, 3.0, 0.25]], np.float32)
CLASSES = RUN.argmax(axis=1)


def test_equal_predictions_pass_with_differences_of_nothing() -> None:
    found = compare(RUN, RUN, softmax(RUN).astype(np.float32), CLASSES)
    assert found.equal
    assert (found.examples, found.logits, found.classes, found.scale) == (2, 0.0, 0, 30.0)
    assert found.probabilities < 1e-7, "float32 beside float64"


def test_logits_are_held_to_1e_5_of_the_largest_and_probabilities_to_1e_5() -> None:
    near, far = RUN.copy(), RUN.copy()
    near[0, 1] += 1e-4
    far[0, 1] += 4e-4
    assert compare(RUN, near, softmax(RUN), CLASSES).equal
    assert not compare(RUN, far, softmax(RUN), CLASSES).equal
    assert compare(RUN, RUN, softmax(RUN) + 9e-6, CLASSES).equal
    assert not compare(RUN, RUN, softmax(RUN) + 1.1e-5, CLASSES).equal


def test_one_class_that_differs_fails_and_so_does_a_logit_that_is_no_number() -> None:
    found = compare(RUN, RUN, softmax(RUN), CLASSES + np.array([0, 1]))
    assert found.classes == 1
    assert not found.equal
    broken = RUN.copy()
    broken[1, 1] = np.nan
    assert not compare(RUN, broken, softmax(RUN), CLASSES).equal


def test_other_shapes_are_an_error() -> None:
    with pytest.raises(EngineError, match="logits"):
        compare(RUN, RUN[:1], softmax(RUN), CLASSES)


def test_an_export_that_differs_or_holds_nothing_to_load_fails_the_command() -> None:
    good = compare(RUN, RUN, softmax(RUN), CLASSES)
    raise_if_different({"SavedModel": good, "model.keras": good})
    bad = compare(RUN, RUN + 1e-3, softmax(RUN), CLASSES)
    with pytest.raises(EngineError, match=r"^model\.keras differs from the run: a logit by 1\.0e-03, "):
        raise_if_different({"SavedModel": good, "model.keras": bad})
    with pytest.raises(EngineError, match="install tensorflow"):
        raise_if_different({})
