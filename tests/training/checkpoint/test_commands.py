"""Whole runs of the real command: one that can't save, one that goes back, and one that branches."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import storage
from runner.checkpoint.reading import Checkpoint
from tests import forks
from tests.run.test_runs import command, recorded, run, summary

pytestmark = pytest.mark.slow

FULL = """
from runner.checkpoint import storage

write = storage.write

def full(folder, content, team):
    if content.step > 22:
        raise OSError(28, "No space left on device")
    return write(folder, content, team)

storage.write = full
from runner.__main__ import main
main()
"""


@pytest.mark.nightly
def test_a_run_with_an_unsaved_last_state_fails_but_is_recorded(tmp_path: Path) -> None:
    keep = f"trainer.checkpoint.folder={tmp_path / 'checkpoints'}"
    arguments, environment = command(tmp_path, "engine=jax", "mesh=single", "trainer.epochs=2", keep)
    arguments = [sys.executable, "-c", FULL, *arguments[3:]]
    done = forks.run(arguments, library="jax", cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 1, done.stderr[-2000:]
    client, found = recorded(tmp_path)
    assert found.info.status == "FAILED"
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "error: the state of step 44 could not be saved ([Errno 28] No space left on device); free space"
    )
    resumed = tmp_path / "checkpoints" / found.info.run_id
    assert last.endswith(f"continue from step 22 with resume={resumed}")
    assert done.stdout.splitlines()[-1] == f"To continue: python -m runner resume=checkpoints/{found.info.run_id}"
    assert found.data.tags["runner.ended"] == found.data.tags["runner.unsaved"] == last.removeprefix("error: ")
    assert found.data.metrics["eval/accuracy"] == summary(tmp_path)["eval_accuracy"]
    assert "summary.json" in {item.path for item in client.list_artifacts(found.info.run_id)}
    run(tmp_path, f"resume={tmp_path / 'checkpoints' / found.info.run_id}", library="jax")
    assert recorded(tmp_path)[1].info.status == "FINISHED"


@pytest.mark.nightly
def test_a_branch_is_a_new_run_and_going_back_replaces_later_checkpoints(tmp_path: Path) -> None:
    keep = f"trainer.checkpoint.folder={tmp_path / 'checkpoints'}"
    shape = ["engine=jax", "mesh=single", "trainer.epochs=2", "trainer.checkpoint.every_steps=11"]
    shape += ["trainer.checkpoint.keep=9", "tracking=none"]
    run(tmp_path, *shape, keep, f"hydra.run.dir={tmp_path / 'first'}")
    origin = tmp_path / "checkpoints" / "first"
    before = {path: path.read_bytes() for path in origin.rglob("*") if path.is_file()}
    other = [keep, "optimizer.learning_rate=0.0005"]
    done = run(tmp_path, "branch=first@22", *other, f"hydra.run.dir={tmp_path / 'second'}", library="jax")
    assert "Starting from run first at step 22 of 44, epoch 2 of 2\n" in done.stdout
    assert {path: path.read_bytes() for path in origin.rglob("*") if path.is_file()} == before
    branch = tmp_path / "checkpoints" / "second"
    assert storage.steps(branch) == [33, 44], "its first checkpoint is that of its first save"
    done = run(tmp_path, "resume=first@22", *other, library="jax")
    assert "resume=first@22: the checkpoints of steps 33, 44" in done.stdout
    assert storage.steps(origin) == [11, 22, 33, 44]
    for step in (33, 44):
        one, two = (Checkpoint(storage.place(place, step)) for place in (branch, origin))
        for path in one:
            np.testing.assert_array_equal(one[path], two[path])
    assert json.loads((branch / "run.json").read_text())["overrides"][-1] == "optimizer.learning_rate=0.0005"


def test_a_resume_that_the_engine_rejects_changes_nothing(tmp_path: Path) -> None:
    keep = f"trainer.checkpoint.folder={tmp_path / 'checkpoints'}"
    run(tmp_path, "engine=jax", "mesh=single", "trainer.epochs=1", keep)
    _, before = recorded(tmp_path)
    folder = tmp_path / "checkpoints" / before.info.run_id
    # The lock names the process that held it last, and is no part of the record.
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}
    again = (f"resume={folder}", "optimizer=sgd", "trainer.epochs=2", f"hydra.run.dir={tmp_path / 'again'}")
    for more in ((), ("trainer.verify_first=true", "verify.steps=1")):
        done = run(tmp_path, *again, *more, code=2, library="jax")
        assert "was saved with another optimizer" in done.stderr
        _, after = recorded(tmp_path)
        assert (after.info.status, after.info.end_time) == (before.info.status, before.info.end_time)
        assert after.data.tags == before.data.tags
        assert {path: path.read_bytes() for path in files} == files
        assert not list((tmp_path / "again").rglob("run.json")), "no run that a resume could find"
