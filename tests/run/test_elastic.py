"""A run that loses devices and gets some back: the same order of examples and losses as an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from runner.training.checkpoint import attempts, storage
from runner.training.checkpoint.reading import Checkpoint
from runner.training.metric_history import from_arrays
from tests import forks
from tests.run import recorded_digits

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
BASE = [
    *(
        "dataset=custom",
        "dataset._target_=tests.run.recorded_digits.load",
        "dataset.batch_size=48",
        "mesh=batch8",
        "trainer.steps=400",
        "trainer.log_every_steps=1",
    ),
    *("trainer.evaluate_every_steps=100", "trainer.steps_per_call=2", "trainer.progress=none", "tracking=none"),
    *("trainer.checkpoint.every_steps=40", "trainer.checkpoint.keep=20", "optimizer.learning_rate=0.0005"),
    *("resume=auto", "name=exp1"),
]


def environment(folder: Path) -> dict[str, str]:
    order = folder / "order"
    order.mkdir()
    return os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder), recorded_digits.FOLDER: str(order)}


def history(folder: Path) -> dict[int, float]:
    run = folder / "outputs" / "checkpoints" / "exp1"
    last = Checkpoint(storage.place(run, storage.steps(run)[-1]))
    assert last.step == 400
    return {step: means["loss"] for step, means in from_arrays(last.history()).train}


def undisturbed(folder: Path, engine: str) -> Path:
    """Runs without a loss; returns the run's folder."""
    folder.mkdir()
    line = [sys.executable, "-m", "runner", f"engine={engine}", *BASE]
    library = "jax" if engine == "jax" else "tensorflow"
    done = forks.run(line, library=library, cwd=folder, env=environment(folder), timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def check(folder: Path, whole: Path) -> None:
    """Every step was given the examples of the undisturbed run in its order, and has its loss within rounding."""
    order = recorded_digits.read(folder / "order")
    expected = recorded_digits.read(whole / "order")
    for recorded in (order, expected):
        assert list(recorded) == list(range(1, 401))
        assert all(sorted(rows) == list(range(48)) for rows in recorded.values())
    assert len({example for rows in expected.values() for example in rows.values()}) > 1400
    assert recorded_digits.digest(order) == recorded_digits.digest(expected)

    losses, undisturbed_losses = history(folder), history(whole)
    assert list(losses) == list(undisturbed_losses) == list(range(1, 401))
    # Rounding of float32 grows over 400 steps of Adam; another example in one batch changes a loss by 1e-2.
    np.testing.assert_allclose(list(losses.values()), list(undisturbed_losses.values()), rtol=2e-3)


@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
def test_a_supervised_run_continues_on_the_devices_that_are_left(tmp_path: Path, engine: str) -> None:
    whole = undisturbed(tmp_path / "whole", engine)
    folder = tmp_path / "elastic"
    folder.mkdir()
    devices = folder / "devices.txt"
    devices.write_text("8")
    line = [sys.executable, "-m", "runner", f"engine={engine}", *BASE, "cluster.elastic=true"]
    line += ["cluster.devices_file=devices.txt", "cluster.restarts=9"]
    line = [line[0], "-m", "runner.supervise", "--", *line]
    run = folder / "outputs" / "checkpoints" / "exp1"
    process = subprocess.Popen(line, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True)
    for number, left in enumerate(("6", "8", "4"), start=1):
        _wait_for_a_new_checkpoint(process, run, number)
        devices.write_text(left)
        os.kill(int(attempts.read(run)[-1].pid), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert [attempt.mesh for attempt in attempts.read(run)][1:] == ["batch=6", "batch=8", "batch=4"]
    assert "mesh batch=6 on 6 virtual CPU devices, in place of batch=8 (cluster.elastic)" in output
    check(folder, whole)


def _wait_for_a_new_checkpoint(process: subprocess.Popen[str], run: Path, number: int) -> None:
    """Waits until the attempt of a number has saved a checkpoint of its own."""
    while True:
        assert process.poll() is None
        begun = attempts.read(run) if run.is_dir() else []
        if len(begun) >= number and any(step > begun[number - 1].first for step in storage.steps(run)):
            return
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("processes", "left", "where"),
    [
        (4, 6, "6 virtual CPU devices in 3 processes"),
        # The launcher starts a single process too.
        (2, 4, "4 virtual CPU devices"),
    ],
)
def test_the_launcher_starts_as_many_processes_as_fit(tmp_path: Path, processes: int, left: int, where: str) -> None:
    whole = undisturbed(tmp_path / "whole", "jax")
    folder = tmp_path / "elastic"
    folder.mkdir()
    devices = folder / "devices.txt"
    devices.write_text("8")
    line = [sys.executable, "-m", "runner", "engine=jax", *BASE, "cluster=local", f"cluster.processes={processes}"]
    line += ["cluster.elastic=true", "cluster.devices_file=devices.txt", "cluster.restarts=9"]
    run = folder / "outputs" / "checkpoints" / "exp1"
    process = subprocess.Popen(line, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True)
    _wait_for_a_new_checkpoint(process, run, 1)
    devices.write_text(str(left))
    os.kill(int(attempts.read(run)[-1].pid), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert attempts.read(run)[-1].mesh == f"batch={left}"
    assert f"mesh batch={left} on {where}, in place of batch=8 (cluster.elastic)" in output
    check(folder, whole)
