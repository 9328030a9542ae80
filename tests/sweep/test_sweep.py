"""Sweeps of the real command: what the table, the parent run and the exit code say, and that a sweep goes on."""

import csv
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import forks, proc
from tests.commands import ran
from tests.stores import store_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHORT = ["dataset=digits", "trainer.log_model=false", "trainer.epochs=1", "optimizer=sgd", "trainer.log_every_steps=1"]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": store_in(folder)}


def sweep(folder: Path, *overrides: str, name: str = "sweep", code: int = 0) -> subprocess.CompletedProcess[str]:
    words = ("-m", *overrides, f"hydra.sweep.dir={folder / name}")
    return ran(folder, "runner", *words, code=code, MLFLOW_TRACKING_URI=store_in(folder))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open() as file:
        return list(csv.DictReader(file))


def runs(folder: Path) -> tuple[Any, Any, list[Any]]:
    """Returns the client, the only parent and its children."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("runner")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in found if run.data.tags.get("runner.kind") == "sweep"]
    children = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(children) == len(found) - 1
    return client, parent, children


def status_by_name(children: list[Any]) -> dict[str, str]:
    return {run.info.run_name: run.info.status for run in children}


@pytest.mark.nightly
def test_jobs_of_several_meshes_are_children_of_one_finished_parent_with_table_and_plots(tmp_path: Path) -> None:
    done = sweep(tmp_path, *SHORT, "dataset.batch_size=32,64", "mesh=single,batch2", "hydra.launcher.max_parallel=2")
    client, parent, children = runs(tmp_path)
    assert parent.info.status == "FINISHED"
    assert parent.info.run_name == "sweep of batch_size, mesh"
    names = {f"batch_size={size},mesh={mesh}" for size in (32, 64) for mesh in ("single", "batch2")}
    assert status_by_name(children) == dict.fromkeys(names, "FINISHED")
    (one,) = [run for run in children if run.info.run_name == "batch_size=32,mesh=batch2"]
    assert one.data.tags["mlflow.varied.dataset.batch_size"] == "32"
    assert one.data.tags["mlflow.varied.mesh"] == "batch2"
    for run in children:
        logged = sorted(point.step for point in client.get_metric_history(run.info.run_id, "train/loss"))
        assert logged == list(range(1, 45 if "batch_size=32" in run.info.run_name else 23)), "none is lost or twice"
    assert parent.data.tags["runner.sweep.best"].startswith("batch_size=32,")
    best = max(run.data.metrics["eval/accuracy"] for run in children)
    assert parent.data.metrics["eval/accuracy"] == best
    files = {Path(item.path).name for item in client.list_artifacts(parent.info.run_id, "sweep")}
    assert {"table.csv", "eval_accuracy_by_mesh.png"} <= files
    assert len(re.findall(r"^job \d, batch_size=\d+,mesh=\w+: started$", done.stdout, re.MULTILINE)) == 4
    assert re.search(
        r"^job 3, batch_size=64,mesh=batch2: passed after \d+ s, eval/accuracy 0\.\d+$", done.stdout, re.M
    )
    assert "epoch 1/1" not in done.stdout
    assert "epoch 1/1" in (tmp_path / "sweep" / "3" / "job.log").read_text()
    of_best = next(line for line in done.stdout.splitlines() if line.startswith("  python -m runner "))
    chosen = parent.data.tags["runner.sweep.best"].split(",")
    assert {f"dataset.{chosen[0]}", chosen[1], *SHORT} == {*shlex.split(of_best)[3:]}
    assert "To continue" not in done.stdout
    assert "4 jobs: 4 passed" in done.stdout
    assert [row["status"] for row in rows(tmp_path / "sweep")] == ["passed"] * 4


@pytest.mark.nightly
def test_what_fails_or_is_killed_is_told_and_resumed_to_the_end(tmp_path: Path) -> None:
    rates = ["0.05", "0.04", "0.03", "1e30"]
    varied = [f"optimizer.learning_rate={','.join(rates)}", f"trainer.checkpoint.folder={tmp_path / 'checkpoints'}"]
    arguments = [sys.executable, "-m", "runner", "-m", *SHORT[:2], *SHORT[3:], "trainer.epochs=40", *varied]
    process = forks.Popen(
        [*arguments, "mesh=single", f"hydra.sweep.dir={tmp_path / 'sweep'}"],
        cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    wait_for("epoch 5/40", tmp_path / "sweep" / "0" / "job.log")
    os.kill(job_pid(process.pid), signal.SIGKILL)
    (to_continue,) = re.findall(r"(?m)^To continue: python -m runner -m (.*)$", process.stdout.read())
    assert process.wait(60) == 1
    table = rows(tmp_path / "sweep")
    assert [row["status"] for row in table] == ["killed", *["passed"] * 2, "failed"]
    assert table[0]["note"] == "killed by SIGKILL"
    assert "trainer.on_nan=stop" in table[3]["note"]
    client, parent, children = runs(tmp_path)
    assert parent.info.status == "FAILED"
    finished = dict.fromkeys([f"learning_rate={rate}" for rate in rates[1:3]], "FINISHED")
    ended = {"learning_rate=0.05": "KILLED", "learning_rate=1e+30": "FAILED"}
    assert status_by_name(children) == finished | ended

    done = sweep(tmp_path, *shlex.split(to_continue), "trainer.on_nan=continue", name="resumed")
    assert [row["status"] for row in rows(tmp_path / "resumed")] == ["passed", *["skipped"] * 2, "passed"]
    assert "4 jobs: 2 passed, 2 skipped" in done.stdout
    _, parent, again = runs(tmp_path)
    assert parent.info.status == "FINISHED"
    assert len(again) == 4 + 1, "the killed job goes on in its own run, the failed one had no checkpoint"
    (run_id,) = [run.info.run_id for run in children if run.info.run_name == "learning_rate=0.05"]
    (resumed,) = [run for run in again if run.info.run_id == run_id]
    assert resumed.info.status == "FINISHED"
    steps = [point.step for point in client.get_metric_history(run_id, "eval/loss")]
    assert sorted(steps) == [22 * epoch for epoch in range(1, 41)], "every evaluation once"


def wait_for(text: str, log: Path) -> None:
    """Waits until a job has said something."""
    proc.until(lambda: log.exists() and text in log.read_text())


def job_pid(launcher: int) -> int:
    """Returns the newest child; a launcher that was forked has an older one too, its fork server."""
    return int(subprocess.run(["pgrep", "-nP", str(launcher)], capture_output=True, text=True, check=True).stdout)


@pytest.mark.nightly
def test_ctrl_c_ends_the_running_job_marks_the_rest_and_leaves_no_process(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "runner", "-m", *SHORT, "trainer.epochs=100000", "mesh=single,batch2,batch4"]
    process = subprocess.Popen(
        [*arguments, "hydra.launcher.max_parallel=2", f"hydra.sweep.dir={tmp_path / 'sweep'}"],
        cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    wait_for("epoch 3/", tmp_path / "sweep" / "0" / "job.log")
    wait_for("preparing digits", tmp_path / "sweep" / "1" / "job.log")
    pids = proc.children_of(process.pid)
    assert len(pids) == 2
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(60) == 130
    time.sleep(0.1)
    assert not [pid for pid in pids if proc.is_there(pid)]
    assert [row["status"] for row in rows(tmp_path / "sweep")] == ["killed", "killed", "not run"]
    _, parent, children = runs(tmp_path)
    assert parent.info.status == "KILLED"
    assert status_by_name(children)["mesh=single"] == "KILLED"
    assert "3 jobs: 2 killed, 1 not run" in rest
    last = [line for line in rest.splitlines() if line != "interrupted"][-1]
    assert last.startswith("To continue: python -m runner -m ")
    assert last.endswith(f" sweep.resume={parent.info.run_id}")
