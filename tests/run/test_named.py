"""A crash loses no checkpoint and no point: a run that is killed again and again ends as one that was not."""

import random
import time
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import storage
from runner.checkpoint.reading import Checkpoint
from tests import forks
from tests.processes.running import alike, points
from tests.run.test_runs import command

pytestmark = pytest.mark.nightly

LENGTH = [
    "trainer.epochs=40",
    "trainer.evaluate_every=5",
    "trainer.checkpoint.every_steps=50",
    "trainer.steps_per_call=5",
    # A resume that begins the schedule or the wait of a plateau again would show.
    "optimizer.schedule.name=exponential",
    "optimizer.schedule.decay_steps=70",
    "optimizer.schedule.plateau.metric=eval/loss",
    "optimizer.schedule.plateau.patience=1",
    "optimizer.schedule.plateau.min_delta=0.1",
    "trainer.checkpoint.best=eval/loss",
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
        run = folder / "outputs" / "checkpoints" / "exp1"
        # Killed in its start, and then three times a while after a new checkpoint.
        waits = [1.0, *(draw.uniform(0.0, 0.4) for _ in range(3))] if folder == disturbed else []
        for number, seconds in enumerate(waits):
            process = forks.Popen(line, library=library, cwd=folder, env=environment)
            before = storage.steps(run)[-1:]
            while number and storage.steps(run)[-1:] == before:
                assert process.poll() is None
                time.sleep(0.05)
            time.sleep(seconds)
            process.kill()
            process.wait()
        code = forks.Popen(line, library=library, cwd=folder, env=environment).wait(300)
        assert code == 0
    states = []
    logged = []
    for folder in (undisturbed, disturbed):
        run = folder / "outputs" / "checkpoints" / "exp1"
        states.append(Checkpoint(storage.place(run, storage.steps(run)[-1])))
        only, found = points(folder)
        assert only.info.status == "FINISHED"
        logged.append(alike(found))
    assert states[0].step == states[1].step == 40 * 22
    for path in states[0]:
        np.testing.assert_array_equal(states[0][path], states[1][path])
    assert logged[0] == logged[1], "no point is missing, and none is there twice"
