"""A run whose length and evaluations are counted in steps, in whole runs of the real command."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from runner.training.checkpoint import storage
from runner.training.checkpoint.reading import Checkpoint
from runner.training.metric_history import from_arrays
from tests.processes.running import differences, last
from tests.run.test_runs import run, summary

pytestmark = pytest.mark.nightly

LIBRARIES = {"keras_dtensor": "tensorflow", "jax": "jax"}
ENGINES = list(LIBRARIES)

# Epochs of 22 steps. The schedule restarts, and no evaluation improves by so much that the rate stays: both inside an
# epoch and between evaluations, so a resume that is off by one step or evaluation computes other weights.
STEPS = [
    "mesh=batch2",
    "trainer.steps=50",
    "trainer.evaluate_every_steps=9",
    "trainer.steps_per_call=4",
    "trainer.log_every_steps=4",
    "trainer.early_stopping.metric=eval/loss",
    "trainer.early_stopping.patience=5",
    "trainer.checkpoint.every_steps=1",
    "trainer.checkpoint.keep=99",
    "optimizer.schedule.name=cosine_restarts",
    "optimizer.schedule.decay_steps=7",
    "optimizer.schedule.plateau.metric=eval/loss",
    "optimizer.schedule.plateau.patience=1",
    "optimizer.schedule.plateau.min_delta=0.5",
    "optimizer.schedule.plateau.factor=0.8",
    "tracking=none",
]


def train(folder: Path, engine: str, *overrides: str) -> None:
    folder.mkdir(exist_ok=True)
    run(folder, f"engine={engine}", f"trainer.checkpoint.folder={folder / 'checkpoints'}", *overrides)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_by_steps_resumes_bit_for_bit_inside_epochs_and_between_evaluations(tmp_path: Path, engine: str) -> None:
    whole = tmp_path / "whole"
    train(whole, engine, *STEPS)
    history = from_arrays(last(whole).history())
    evaluated = [step for step, _ in history.evaluations]
    assert evaluated == [9, 18, 27, 36, 45, 50]
    # Inside the first epoch, at its end, at an evaluation, one step after it, and inside the last period.
    for at in (13, 22, 27, 28, 47):
        again = tmp_path / f"again_{at}"
        shutil.copytree(whole / "checkpoints", again / "checkpoints")
        (own,) = (again / "checkpoints").iterdir()
        train(again, engine, f"resume='{own}@{at}'")
        assert differences(last(whole), last(again)) == {}, at
        for name in ("taken_step", "ended", "eval_loss"):
            assert summary(again)[name] == summary(whole)[name], at


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_by_steps_equals_the_run_by_epochs_bit_for_bit(tmp_path: Path, engine: str) -> None:
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


def test_early_stopping_inside_an_epoch_ends_with_the_best_evaluation(tmp_path: Path) -> None:
    early = [
        "trainer.early_stopping.metric=eval/loss",
        "trainer.early_stopping.patience=2",
        "trainer.log_every_steps=3",
    ]
    never = ["trainer.early_stopping.min_delta=9", "trainer.steps=500", "trainer.evaluate_every_steps=3"]
    train(tmp_path / "run", "jax", "mesh=batch2", "tracking=none", *early, *never)
    made = summary(tmp_path / "run")
    assert made["steps"] == 9, "after one evaluation and two without an improvement, in the first epoch"
    losses = {step: evaluation.loss for step, evaluation in from_arrays(last(tmp_path / "run").history()).evaluations}
    assert list(losses) == [3, 6, 9]
    assert made["taken_step"] == min(losses, key=lambda step: losses[step])
    (own,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert made["taken_step"] in storage.steps(own)
    assert Checkpoint(storage.place(own, made["taken_step"])).step == made["taken_step"]
