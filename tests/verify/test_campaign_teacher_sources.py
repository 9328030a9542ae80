"""A teacher of a loss from a recorded run that was not exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.test_verify import command

pytestmark = pytest.mark.campaign

MODULE = """
def loss(ops, outputs, batch):
    return ops.cross_entropy(ops.softmax(batch["big"]), outputs)
"""
CUSTOM = ["engine=jax", "task=custom", "task._target_=taught.loss", "verify.steps=4", "mesh=batch4_model2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with the module of the loss."""
    (tmp_path / "taught.py").write_text(MODULE)
    return tmp_path


def test_a_run_that_was_not_exported_is_a_teacher(folder: Path) -> None:
    digits = ["engine=jax", "dataset=digits", "model=mlp", "dataset.batch_size=32", "trainer.epochs=1", "mesh=batch2"]
    command(folder, *digits, module="runner")
    (run,) = (path.name for path in (folder / "outputs" / "checkpoints").iterdir() if path.is_dir())
    data = ["dataset=digits", "model=mlp", "model.hidden=[16]", "task.units=10", "dataset.batch_size=32"]
    done = command(folder, *data, *CUSTOM, f"+task.teachers.big={run}", "tracking=none")
    assert "verified: 4 steps" in done.stdout
    assert (folder / "outputs" / "exports" / run / "model.keras").is_file()
