"""Runs of the last release, with checkpoints of format 1: evaluated, and resumed to what it made of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runner.training.checkpoint import index, storage
from runner.training.checkpoint.reading import Checkpoint
from runner.training.metric_history import check_arrays, from_arrays
from tests import forks
from tests.nightly import nightly_except
from tests.run.test_runs import command, run, summary

RUNS = Path(__file__).parent / "last_release"
ENGINES = {"jax": "jax", "keras_dtensor": "tensorflow"}
# The release before added up single examples' losses in float32, and this one does so in float64.
ROUNDING = 1e-6


def expected(engine: str, when: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RUNS / engine / "expected.json").read_text())[when]
    return found


def copied(engine: str, folder: Path) -> Path:
    """Returns a copy of a run, which a resume may write into."""
    place = folder / "checkpoints" / engine
    shutil.copytree(RUNS / engine, place)
    (place / "expected.json").unlink()
    return place


@pytest.mark.parametrize("engine", ENGINES)
def test_checkpoints_of_the_last_release_restore_their_history(engine: str) -> None:
    found = Checkpoint(storage.place(RUNS / engine, 6))
    check_arrays(6, found.history())
    past, told = from_arrays(found.history(), batch_size=32), expected(engine, "step 6")
    assert past.evaluations[-1][1].metrics == {"loss": told["eval_loss"], "accuracy": told["eval_accuracy"]}
    assert past.evaluations[-1][1].examples == 360
    assert past.epoch_sums[0] == 3 * 32, "three steps of its epoch, counted as examples"
    assert past.epoch_sums[1] / past.epoch_sums[0] == pytest.approx(told["train_loss"], rel=1e-12)
    noted = index.read_best(RUNS / engine)
    assert noted is not None
    assert (noted["metric"], noted["value"]) == ("eval/accuracy", told["eval_accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", nightly_except(["jax"], [*ENGINES]))
def test_a_run_of_the_last_release_is_evaluated_and_resumed_to_the_same_results(tmp_path: Path, engine: str) -> None:
    place = copied(engine, tmp_path)
    arguments, environment = command(tmp_path, f"run={place}@6", "tracking=none", f"hydra.run.dir={tmp_path / 'seen'}")
    arguments = [*arguments[:2], "runner.evaluate", *arguments[3:]]
    done = forks.run(arguments, library=ENGINES[engine], cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found, told = json.loads((tmp_path / "seen" / "evaluate.json").read_text()), expected(engine, "step 6")
    assert found["metrics"]["loss"] == pytest.approx(told["eval_loss"], rel=ROUNDING)
    assert (found["metrics"]["accuracy"], found["examples"]) == (told["eval_accuracy"], told["eval_examples"])
    run(tmp_path, f"resume={place}", "dataset.batch_size=32", "trainer.epochs=3", library=ENGINES[engine])
    after = expected(engine, "resumed to step 9 with trainer.epochs=3")
    for key, value in after.items():
        assert summary(tmp_path)[key] == pytest.approx(value, rel=ROUNDING), key
    assert storage.steps(place)[-1] == 9
