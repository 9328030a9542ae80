"""A run by steps is the run by epochs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.processes.running import differences, last
from tests.run.test_runs import run, summary

pytestmark = pytest.mark.nightly


def train(folder: Path, engine: str, *overrides: str) -> None:
    folder.mkdir(exist_ok=True)
    run(folder, f"engine={engine}", f"trainer.checkpoint.folder={folder / 'checkpoints'}", *overrides)


def test_a_run_by_steps_equals_the_run_by_epochs_bit_for_bit(tmp_path: Path) -> None:
    engine = "jax"
    chosen = ["mesh=batch2", "optimizer.schedule.name=cosine", "tracking=none", "trainer.log_every_steps=5"]
    # With padding at the end of an epoch, and dropout by the step, an order or a step of another run would show.
    chosen += ["dataset.remainder=pad", "model=vit", "model.patch=4", "model.dim=16", "model.depth=1"]
    chosen.append("model.dropout=0.3")
    train(tmp_path / "epochs", engine, *chosen, "trainer.epochs=2")
    per_epoch = last(tmp_path / "epochs").step // 2
    by_steps = [f"trainer.steps={2 * per_epoch}", f"trainer.evaluate_every_steps={per_epoch}"]
    train(tmp_path / "steps", engine, *chosen, *by_steps)
    assert differences(last(tmp_path / "epochs"), last(tmp_path / "steps")) == {}
    assert summary(tmp_path / "steps")["ended"] == f"trained for {2 * per_epoch} steps"
    # Other evaluations change no weight.
    train(tmp_path / "often", engine, *chosen, by_steps[0], "trainer.evaluate_every_steps=7")
    often = last(tmp_path / "often")
    for path, expected in last(tmp_path / "epochs").items():
        np.testing.assert_array_equal(often[path], expected, err_msg=path)
