"""A wheel in a place of its own, without the checkout: a project is written there, runs, and is moved."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ["dataset.size=400", "trainer.epochs=2", "trainer.progress=none"]
Command = Callable[..., str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel in it, and with the libraries of this one."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place], cwd=ROOT, check=True, timeout=120
    )
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True, timeout=300)
    found = place / "venv" / "bin" / "python"
    (wheel,) = place.glob("*.whl")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", wheel]
    subprocess.run([found, *install], check=True, timeout=300)
    (own,) = (place / "venv" / "lib").glob("python*/site-packages")
    libraries = Path(sysconfig.get_paths()["purelib"])
    (own / "libraries.pth").write_text(f"{libraries}\n")  # whose own .pth, of the editable install, is not read
    return found


def started(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MLFLOW_TRACKING_URI")}
    return subprocess.run(
        [python, "-m", *arguments],
        cwd=folder,
        env=environment | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def within(python: Path, folder: Path) -> Command:
    def done(*arguments: str) -> str:
        found = started(python, folder, *arguments)
        assert found.returncode == 0, f"{arguments}: {found.stdout[-3000:]}{found.stderr[-3000:]}"
        return found.stdout

    return done


@pytest.mark.nightly
def test_a_project_runs_by_a_wheel_alone_and_after_it_was_moved(python: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    source = within(python, tmp_path / "empty")("runner.init", "../first")
    assert "python -m runner experiment=mine" in source
    first = tmp_path / "first"
    run = within(python, first)
    code = "import runner; print(runner.__file__)"
    place = subprocess.run([python, "-c", code], cwd=first, capture_output=True, text=True, check=True).stdout
    assert "installed" in place, "the wheel's, not the checkout's"

    assert "test hits" in run("runner", "experiment=mine", *SMALL)
    assert "epoch 3 of 3" in run("runner", "resume=latest", "trainer.epochs=3")
    assert "hits" in run("runner.evaluate", "run=latest")
    assert "verified" in run("runner.verify", "experiment=mine", "verify.steps=2", *SMALL)
    assert "d1/kernel" in run("runner.plan", "experiment=mine", "mesh=batch8")
    run("runner.export", "run=latest")
    assert "test hits" in run("runner", "branch=latest", "trainer.epochs=4")
    assert "test hits" in run("runner", "experiment=mine", "engine=jax", "tracking=none", *SMALL)
    several = ("engine=jax", "cluster=local", "cluster.processes=2")
    assert "test hits" in run("runner", "experiment=mine", *several, "tracking=none", *SMALL)
    # Neither folder is where options are found by itself, so that each command line has to bring it along.
    shutil.move(first / "conf", first / "options")
    sweep = ["-m", "experiment=mine", *SMALL, "model.width=8,16", "--config-dir", "options"]
    assert run("runner", *sweep).count("passed") >= 2
    resumed = run("runner", *sweep, "sweep.resume=latest")
    assert "finished before" in resumed or resumed.count("skipped") >= 2
    assert "width" in run("runner.runs", "compare", "sweep=latest")

    shutil.move(first, tmp_path / "second")
    run = within(python, tmp_path / "second")
    assert "width" in run("runner.runs", "compare", "sweep=latest")
    # MLflow stores absolute paths: the first run after a move says so, and a link leads from the old one to the new.
    warned = started(python, tmp_path / "second", "runner", "resume=latest", "trainer.epochs=3")
    assert "was the project moved or copied?" in warned.stderr
    shutil.rmtree(first, ignore_errors=True)
    (first / "outputs").mkdir(parents=True)
    (first / "outputs" / "mlartifacts").symlink_to(tmp_path / "second" / "outputs" / "mlartifacts")
    resumed = run("runner", *sweep, "sweep.resume=latest")
    assert "finished before" in resumed or resumed.count("skipped") >= 2
    assert "epoch 4 of 4" in run("runner", "resume=latest", "trainer.epochs=4"), "its folder of options is known"
    assert "hits" in run("runner.evaluate", "run=latest")
    shutil.move(tmp_path / "second" / "options", tmp_path / "second" / "conf")
    # One of the project's own tests trains its experiment.
    assert re.search("[12] passed", within(python, tmp_path / "second")("pytest", "-q", "-p", "no:cacheprovider"))
    written = [path for path in first.rglob("*") if not path.is_symlink() and path.is_file()]
    assert written == [], "nothing was written where the project was"
