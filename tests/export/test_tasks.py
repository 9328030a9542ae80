"""A SavedModel and a Keras file of any inputs and any task answer what the model that was written answers."""

from typing import Any

import pytest

from runner.train.export.check import TOLERANCE
from tests import forks

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ANSWERS = {
    "two outputs": ["output_0", "output_1"],
    "classes": ["logits", "probabilities", "class"],
    "two inputs": ["prediction"],
    "labels": ["logits", "probabilities"],
    "standardized": ["prediction"],
}


@pytest.fixture(scope="module", params=["keras_dtensor", "jax"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = str(tmp_path_factory.mktemp("exports"))
    library = "jax" if request.param == "jax" else "tensorflow"
    return dict(forks.answer("-m", "tests.export.worker", request.param, folder, library=library))


@pytest.mark.parametrize("name", ANSWERS)
def test_the_loaded_export_answers_the_same(found: dict[str, Any], name: str) -> None:
    assert set(found[name]) == {"SavedModel", "model.keras"}
    for answers in found[name].values():
        assert list(answers) == ANSWERS[name]
        for largest, scale in answers.values():
            assert scale > 0
            assert largest <= TOLERANCE * scale
