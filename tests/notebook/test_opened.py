"""Commands started from Python, and recorded runs as objects."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import runner
from runner.cli import notebook
from runner.errors import EngineError
from runner.tracking.store import Store, open_store
from tests.stores import store_in


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(store_in(tmp_path), "opened")


def recorded(store: Store, folder: Path, name: str = "mine") -> str:
    run = store.client.create_run(store.experiment_id, run_name=name)
    for step, value in ((1, 0.5), (2, 0.25)):
        store.client.log_metric(run.info.run_id, "train/loss", value, step=step)
    store.client.log_metric(run.info.run_id, "eval/loss", 0.75, step=2)
    (folder / "config.yaml").write_text("engine: {name: jax}\ntrainer: {epochs: 2}\n")
    store.client.log_artifact(run.info.run_id, str(folder / "config.yaml"))
    store.client.set_terminated(run.info.run_id, "FINISHED")
    return str(run.info.run_id)


def test_a_run_is_its_config_and_a_table_of_its_points(store: Store, tmp_path: Path) -> None:
    run_id = recorded(store, tmp_path)
    for word in ("latest", run_id, run_id[:7], "mine"):
        assert runner.open_run(word, store.uri).run_id == run_id
    run = runner.open_run(uri=store.uri)
    assert run.config.trainer.epochs == 2
    assert run.results == {"train/loss": 0.25, "eval/loss": 0.75}
    assert run.metrics["train/loss"].to_dict() == {1: 0.5, 2: 0.25}
    assert run.metrics["eval/loss"].dropna().to_dict() == {2: 0.75}
    assert "FINISHED  eval/loss 0.75" in repr(run)


def test_a_run_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(runner.ConfigError, match=r"run=nope: no run has this id or name"):
        runner.open_run("nope", store.uri)
    with pytest.raises(runner.ConfigError, match="run=latest: this project has no recorded runs"):
        runner.open_run("latest", "none")


def test_a_run_that_nothing_tracked_is_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("trainer: {epochs: 2}\n")
    (tmp_path / "summary.json").write_text('{"eval_loss": 0.5}')
    monkeypatch.setattr(notebook, "run_command", lambda *_: None)
    run = runner.train("dataset=digits", "tracking=none", f"hydra.run.dir={tmp_path}")
    assert (run.status, run.config.trainer.epochs, run.metrics["eval/loss"][0]) == ("FINISHED", 2, 0.5)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "said.py").write_text(
        "import sys, time\n"
        "print('first', flush=True)\n"
        "print('careful', file=sys.stderr)\n"
        "if len(sys.argv) > 1:\n"
        "    print('error: key=x: must be y', file=sys.stderr)\n"
        "    sys.exit(int(sys.argv[1]))\n"
    )
    return "said"


def test_a_cell_shows_what_a_command_prints(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()  # a notebook's output has no file descriptor
    monkeypatch.setattr(sys, "stdout", out)
    notebook.run_command(module, [])
    assert out.getvalue() == "first\ncareful\n"


@pytest.mark.parametrize(("code", "kind"), [("2", runner.ConfigError), ("1", EngineError)])
def test_a_command_that_fails_raises_its_line(module: str, code: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^key=x: must be y$"):
        notebook.run_command(module, [code], quiet=True)


@pytest.mark.nightly
@pytest.mark.slow
def test_training_and_planning_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["engine=jax", "dataset=digits", "mesh=batch2", "trainer.epochs=1", "trainer.limit_train_batches=4"]
    plan = runner.make_plan(*words)
    assert isinstance(plan, notebook.ShownPlan)
    assert plan.content["axes"] == {"batch": 2}
    assert plan.content["variables"][0]["path"] in repr(plan)
    out = io.StringIO()  # a notebook's output has no file descriptor
    monkeypatch.setattr(sys, "stdout", out)
    folder = tmp_path / "run"
    places = [f"hydra.run.dir={folder}", f"trainer.checkpoint.folder={tmp_path / 'saved'}"]
    run = runner.train(*words, f"tracking.uri={store_in(tmp_path)}", *places)
    assert (run.status, run.config.mesh.axes.batch) == ("FINISHED", 2)
    assert run.results["eval/loss"] > 0
    assert "epoch 1/1" in out.getvalue()
