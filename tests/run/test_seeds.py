"""The figures of the three documents that the project was created from, by the commands that README and pages show."""

import json
from pathlib import Path

import pytest

from tests import forks
from tests.commands import ran

pytestmark = pytest.mark.nightly


def summary(folder: Path, library: str, *words: str) -> dict[str, float]:
    """Returns the summary of a run of the command with some words."""
    ran(folder, "runner", *words, f"hydra.run.dir={folder / 'run'}", library=library)
    return json.loads((folder / "run" / "summary.json").read_text())


def test_readmes_first_command_ends_at_the_keras_tutorials_accuracy(tmp_path: Path) -> None:
    found = summary(tmp_path, forks.TENSORFLOW, "mesh=batch8", "model=mlp")
    assert found["eval_accuracy"] == pytest.approx(0.970, abs=0.005)


def test_the_core_tutorial_ends_at_the_figures_of_its_page(tmp_path: Path) -> None:
    """Train loss and accuracy, test loss and accuracy of the third epoch: sums of float32, which processors round."""
    found = summary(tmp_path, forks.TENSORFLOW, "experiment=core_tutorial")
    assert found["eval_loss"] == pytest.approx(0.478, abs=0.01)
    assert found["eval_accuracy"] == pytest.approx(0.876, abs=0.005)


def test_the_guide_to_distributed_training_with_jax_ends_at_0_985(tmp_path: Path) -> None:
    found = summary(tmp_path, forks.JAX, "experiment=jax_guide")
    assert found["eval_accuracy"] == pytest.approx(0.985, abs=0.003)
