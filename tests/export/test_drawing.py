from typing import Any

import pytest

from tests import forks

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("drawing")
    return forks.answer("-m", "tests.export.drawing_worker", str(folder), library="jax")


def test_a_recurrent_model_with_dropout_is_exported_and_every_answer_compared(exports: Any) -> None:
    found = exports["recurrent"]
    assert found["files"] == ["model.keras", "saved_model"]
    assert found["equal"] == {"SavedModel": True, "model.keras": True}
    assert "logits" in found["compared"]["SavedModel"]


def test_a_model_that_samples_is_exported_and_its_answers_are_marked_as_random(exports: Any) -> None:
    found = exports["sampling"]
    assert found["compared"] == {"SavedModel": []}
    line = found["left_out"]
    assert line.startswith("the model can't be written as a whole (")
    assert "Sampling" in line


def test_a_model_that_can_not_be_saved_is_left_out(exports: Any) -> None:
    found = exports["silent"]
    assert found["files"] == ["saved_model"]
    assert "does not implement get_config()" in found["left_out"]
    assert " at 0x" not in found["left_out"]
    assert found["equal"] == {"SavedModel": True}
