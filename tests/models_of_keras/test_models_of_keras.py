"""Models as users have them are verified by both engines, or refused in one line that names a fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models_of_keras.proof import ENGINES, MODELS, prove, write_models

SHORT = [name for name, model in MODELS.items() if model.short]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    write_models(made)
    return made


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SHORT)
def test_a_users_model_is_proven_on_a_mesh_or_refused_in_a_line(name: str, engine: str, folder: Path) -> None:
    proof = prove(name, engine, "batch4_model2", folder, train=False)
    expected = MODELS[name].refused.get(engine)
    assert proof.verdict == ("verified" if expected is None else "refused"), proof.said
    assert (expected or "") in proof.said
    assert proof.sound, proof.said
