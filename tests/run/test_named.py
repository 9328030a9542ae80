"""A named run that is killed again and again, and started by the same command line each time."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from runner.training.checkpoint import attempts, storage
from runner.training.checkpoint.reading import Checkpoint
from tests import forks
from tests.run.test_runs import command, recorded, steps_of

pytestmark = pytest.mark.nightly

LENGTH = [
    "trainer.epochs=40",
    "trainer.evaluate_every=20",
    "trainer.checkpoint.every_steps=50",
    "trainer.steps_per_call=5",
]


@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
def test_a_run_that_is_killed_at_any_moment_ends_as_one_that_was_not(tmp_path: Path, engine: str) -> None:
    draw = random.Random(3)
    undisturbed = tmp_path / "undisturbed"
    disturbed = tmp_path / "disturbed"
    library = "jax" if engine == "jax" else None
    for folder in (undisturbed, disturbed):
        folder.mkdir()
        line, environment = command(folder, f"engine={engine}", "mesh=batch2", *LENGTH, "resume=auto", "name=exp1")
        line = [argument for argument in line if not argument.startswith("hydra.run.dir=")]
        code = -signal.SIGKILL
        for _ in range(12):
            # At most three losses, so that the run comes to an end.
            process = forks.Popen(line, library=library, cwd=folder, env=environment)
            losses = len(attempts.names(folder / "outputs" / "checkpoints" / "exp1"))
            if folder == disturbed and losses < 4:
                time.sleep(draw.uniform(2.0, 12.0))
                process.kill()
            code = process.wait(300)
            if code == 0:
                break
        assert code == 0
    states = []
    for folder in (undisturbed, disturbed):
        run = folder / "outputs" / "checkpoints" / "exp1"
        states.append(Checkpoint(storage.place(run, storage.steps(run)[-1])))
    assert states[0].step == states[1].step == 40 * 22
    for path in states[0]:
        np.testing.assert_array_equal(states[0][path], states[1][path])
    steps = []
    for folder in (undisturbed, disturbed):
        client, only = recorded(folder)
        assert only.info.status == "FINISHED"
        steps.append(steps_of(client, only.info.run_id, "train/loss"))
    assert steps[0] == steps[1], "no point is missing, and none is there twice"
