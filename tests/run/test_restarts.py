"""Whole runs that lose processes and are started again by the launcher or the supervisor."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import files, runs, storage
from runner.cluster import process as tracked_process
from runner.errors import EXIT_FINAL
from tests.proc import until
from tests.run.test_named import LENGTH
from tests.run.test_runs import command, recorded

pytestmark = pytest.mark.nightly


def record(run: Path) -> dict[str, Any]:
    return files.read_json(run / runs.RECORD, files.LARGEST_RECORD)


def test_the_launcher_starts_a_run_again_that_lost_a_process(tmp_path: Path) -> None:
    line, environment = command(tmp_path, "engine=jax", "mesh=batch2", "cluster=local", *LENGTH)
    line = [argument for argument in line if not argument.startswith("hydra.run.dir=")]
    line += ["resume=auto", "name=exp1", "cluster.restarts=3"]
    run = tmp_path / "outputs" / "checkpoints" / "exp1"
    process = subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    until(lambda: storage.steps(run) or process.poll() is not None)
    os.kill(int(record(run)["process"][tracked_process.PID]), signal.SIGKILL)
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(300) == 0, errors
    assert "starting the run again in 1 s" in errors
    first, second = record(run)["attempts"]
    assert first["ended"]
    assert second["ended"] == "finished"
    assert second["first"] > 0
    _, only = recorded(tmp_path)
    assert only.info.status == "FINISHED"
    assert only.data.tags["runner.attempts"].startswith("1: steps 0 to ")


def test_the_supervisor_starts_no_run_again_that_has_a_nan(tmp_path: Path) -> None:
    line, environment = command(tmp_path, "engine=jax", "mesh=single", "optimizer=sgd", "resume=auto", "name=exp1")
    line = [argument for argument in line if not argument.startswith("hydra.run.dir=")]
    line = [line[0], "-m", "runner.supervise", "--", *line, f"optimizer.learning_rate={2.0**100}"]
    done = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == EXIT_FINAL
    assert "not started again: the run would fail for the same reason" in done.stderr
    assert len(record(tmp_path / "outputs" / "checkpoints" / "exp1")["attempts"]) == 1
