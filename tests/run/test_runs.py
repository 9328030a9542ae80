"""Whole runs of the real command, in processes of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from runner.tracking.records import figures_of
from tests import forks
from tests.commands import ran
from tests.processes.running import recorded
from tests.stores import store_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DIGITS = ["dataset=digits", "trainer.log_model=false", "trainer.progress=lines"]

STAGES = [  # in a run's order
    "preparing digits",
    f"loading TensorFlow {version('tensorflow')}",
    "checking the mesh's arithmetic",
    "building the model",
    "compiling the step",
    "compiling the evaluation",
    "opening the run's record in MLflow",
    "writing the results",
]


def stages_of(out: str) -> list[str]:
    """Returns the stages that a run said, in its order."""
    return re.findall(r"^(.+) \.\.\. \d+\.\d s$", out, re.MULTILINE)


def command(folder: Path, *overrides: str) -> tuple[list[str], dict[str, str]]:
    """Returns the command of a run in `folder`, which holds its store and its output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": store_in(folder)}
    return [sys.executable, "-m", "runner", *DIGITS, f"hydra.run.dir={folder / 'run'}", *overrides], environment


def run(folder: Path, *overrides: str, code: int = 0, library: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs to the end and checks the exit code; `library` as in `forks.Popen`."""
    arguments, environment = command(folder, *overrides)
    done = forks.run(arguments, library=library, cwd=folder, env=environment, timeout=300)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def summary(folder: Path) -> dict[str, Any]:
    """Returns the summary that a finished run left."""
    return dict(json.loads((folder / "run" / "summary.json").read_text()))


def steps_of(client: Any, run_id: str, metric: str) -> list[int]:
    """Returns the steps of a metric's points in order; that of step 0 says that the run was not evaluated yet."""
    return [point.step for point in client.get_metric_history(run_id, metric) if point.step]


def test_a_run_ends_finished_with_every_point_param_and_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*forks.DRAWN)
    done = run(tmp_path, "mesh=batch2", "trainer.epochs=2", "trainer.log_model=true")
    client, found = recorded(tmp_path)
    assert found.info.status == "FINISHED"
    assert found.data.params["dataset.batch_size"] == "64"
    assert found.data.params["mesh"] == "batch=2"
    assert "`python -m runner dataset=digits" in found.data.tags["mlflow.note.content"]
    assert "optimizer.epsilon" not in found.data.params, "the page lists what matters; config.yaml has all"
    assert len(found.data.params) <= 22
    shown = [tag for tag in found.data.tags if not tag.startswith("mlflow.")]
    assert len(shown) <= 9, shown
    assert found.data.tags["runner.mesh"] == found.data.params["mesh"]
    assert found.data.tags["mlflow.source.name"] == "python -m runner"
    assert found.data.tags["runner.data"].startswith("digits, SHA-256 ")
    assert steps_of(client, found.info.run_id, "train/loss") == [10, 20, 30, 40, 44]
    assert steps_of(client, found.info.run_id, "learning_rate") == [10, 20, 30, 40, 44]
    assert steps_of(client, found.info.run_id, "eval/accuracy") == [22, 44]
    assert found.data.metrics["eval/accuracy"] == summary(tmp_path)["eval_accuracy"] > 0.85
    assert found.data.metrics["throughput/examples_per_second"] > 0
    artifacts = {item.path for item in client.list_artifacts(found.info.run_id)}
    pictures = {"curves.png", "confusion.png", "wrong.png"}
    assert {"config.yaml", "model_summary.txt", *pictures} <= artifacts
    assert min((tmp_path / "run" / name).stat().st_size for name in pictures) > 10_000
    planned = figures_of(found.data.tags)["plan/bytes_per_device"]
    assert planned == summary(tmp_path)["plan_bytes_per_device"] > 0
    assert not {name.partition("/")[0] for name in found.data.metrics} - {
        "eval", "train", "throughput", "learning_rate", "system"
    }, "every metric is a curve"  # fmt: skip
    assert next(iter(found.data.metrics)) == "eval/accuracy", "MLflow's comparison begins with an evaluation's"
    assert found.outputs.model_outputs, "the model was logged"
    assert summary(tmp_path)["eval_examples"] == 360
    assert done.stdout.splitlines()[0] == "mesh batch=2 on 2 virtual CPU devices"
    assert found.info.run_id in done.stdout
    assert "leaves out 29 of 1,437" in done.stdout
    lines = done.stdout.splitlines() + done.stderr.splitlines()
    assert len(lines) <= 31 - 1, "a run by default has one more epoch"
    assert max(map(len, (line for line in lines if line.startswith("epoch ")))) <= 80, "a line of a terminal"
    assert [line for line in lines if line.startswith("config: ")] == [
        "config: dataset=digits, trainer.log_model=false, trainer.progress=lines, mesh=batch2, trainer.epochs=2, "
        "trainer.log_model=true, else the defaults (run/config.yaml)"
    ]
    assert [one for one in STAGES if "loading" not in one] == stages_of(done.stdout), "forked with its library loaded"
    log = (tmp_path / "run" / "runner.log").read_text()
    assert "keep: 2" in log, "the whole config"
    assert re.search(r"compiling the step: \d+\.\d s", log)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_under_the_output_ends_no_run_and_the_record_says_what_lacks_text(tmp_path: Path) -> None:
    arguments, environment = command(tmp_path, "trainer.epochs=1")
    with Path("/dev/full").open("w") as full:
        process = forks.Popen(arguments, cwd=tmp_path, env=environment, stdout=full, stderr=full)
        assert process.wait(timeout=300) == 0
    client, found = recorded(tmp_path)
    assert found.info.status == "FINISHED"
    assert steps_of(client, found.info.run_id, "train/loss") == [10, 20, 22]
    why = found.data.tags["runner.incomplete_logs"]
    assert why.startswith("stdout could not be written (No space left on device) at ")
    assert why in (tmp_path / "run" / "runner.log").read_text()


@pytest.mark.nightly
def test_a_picture_that_fails_ends_no_run_or_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*forks.DRAWN)
    (tmp_path / "broken.py").write_text(BROKEN)
    own = ["dataset=custom", "dataset._target_=broken.load", "dataset.batch_size=20", "tracking=none"]
    done = run(tmp_path, *own, "dataset.holdout=0", "trainer.epochs=1")
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    why = "(ValueError: x^{ Expected end_group); continuing without it"
    assert f"warning: could not write {tmp_path / 'run' / 'confusion.png'} {why}" in lines, done.stderr
    assert summary(tmp_path)["eval_examples"] == 60
    assert "broken.py" in (tmp_path / "run" / "runner.log").read_text(), "the traceback"
    done = ran(tmp_path, "runner.evaluate", "run=latest", "tracking=none", f"hydra.run.dir={tmp_path / 'seen'}")
    assert "confusion.png (ValueError: x^{ Expected" in done.stderr


BROKEN = """
import numpy as np
from matplotlib.figure import Figure


def fails(*_, **__):
    raise ValueError("\\nx^{\\nExpected end_group")


Figure.savefig = fails


def load():
    rng = np.random.default_rng(0)
    return {
        split: {"x": rng.normal(size=(60, 4)).astype("float32"), "label": rng.integers(0, 3, 60)}
        for split in ("train", "test")
    }
"""


@pytest.mark.nightly
def test_sigterm_ends_a_run_killed_with_its_metrics_up_to_the_last_step(tmp_path: Path) -> None:
    arguments, environment = command(tmp_path, "trainer.epochs=100000", "trainer.evaluate_every=100000")
    process = subprocess.Popen(  # a real start
        arguments, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("epoch 20/"):
            break
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert "KILLED" in rest
    assert stages_of("".join(lines)) == STAGES[:-1]
    last = [line for line in rest.splitlines() if line != "interrupted"][-1]
    assert re.fullmatch(r"To continue: python -m runner resume=(latest|[0-9a-f]{32})", last)
    ended = [line.split()[1].split("/")[0] for line in rest.splitlines() if line.startswith("epoch ")]
    last_epoch = max([20, *map(int, ended)])
    client, found = recorded(tmp_path)
    assert found.info.status == "KILLED"
    steps = steps_of(client, found.info.run_id, "train/loss")
    assert steps[-1] >= 22 * last_epoch
    assert steps[:-1] == list(range(10, 10 * len(steps), 10)), "a point every ten steps, then the rest"
    assert 0 < steps[-1] - steps[-2] <= 10


def test_a_loss_that_is_not_finite_fails_the_run_in_one_line(tmp_path: Path) -> None:
    # What is invalid for the data alone is no run: the record below is the only one.
    assert "model.patch=5 must divide" in run(tmp_path, "model=vit", "model.patch=5", code=2).stderr
    done = run(tmp_path, "optimizer=sgd", "optimizer.learning_rate=1e30", code=1)
    assert done.stderr.startswith("error: the loss is ")
    assert "trainer.on_nan=stop" in done.stderr
    assert "Traceback" not in done.stderr
    _, found = recorded(tmp_path)
    assert found.info.status == "FAILED"


CANARY = """
import sys
from tensorflow.experimental import dtensor
from runner.engine.dtensor import canary, devices
from runner.engine.dtensor.environment import prepare_environment
from runner.errors import EngineError
from tests.configs import with_keys
from tests.engine import cases

config = cases.config({"batch": 2})
config = with_keys(config, {"engine.combine_all_reduces": sys.argv[1] == "combined"})
prepare_environment(config.engine)
made = dtensor.create_mesh(list(config.mesh.axes.items()), devices=devices.prepare_devices(config.mesh))
canary.check(made, "batch", reread=False)
try:
    canary.check(made, "batch", reread=True)
except EngineError as error:
    print(error)
"""


@pytest.mark.parametrize(("mode", "sees"), [("combined", True), ("separate", False)])
def test_the_canary_sees_stale_moments_where_the_library_lies(mode: str, sees: bool) -> None:
    done = forks.python("-c", CANARY, mode, library="tensorflow")
    assert done.stdout.startswith("the canary failed: ") == sees


def test_a_signal_before_the_loop_ends_the_run_at_once(tmp_path: Path) -> None:
    arguments, environment = command(tmp_path, "tracking=none")
    process = subprocess.Popen(arguments, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # the mesh and its devices: composed and checked
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
