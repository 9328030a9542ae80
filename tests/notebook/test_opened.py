"""Commands started from Python, and recorded runs as objects."""

import io
import json
import math
import sys
from functools import partial
from pathlib import Path

import pytest

import runner
from runner import figures
from runner.cli import notebook
from runner.errors import EngineError
from runner.plan import result
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
    (folder / "wrong.png").write_bytes(b"wrong")
    for file in ("config.yaml", "wrong.png"):
        store.client.log_artifact(run.info.run_id, str(folder / file))
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
    assert "<th>loss</th>" in run._repr_html_()
    assert run.plot().png == b"wrong"


def test_a_run_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(runner.ConfigError, match=r"run=nope: no run has this id or name"):
        runner.open_run("nope", store.uri)
    with pytest.raises(runner.ConfigError, match="run=latest: this project has no recorded runs"):
        runner.open_run("latest", "none")


def test_a_run_that_nothing_tracked_is_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("trainer: {epochs: 2}\n")
    (tmp_path / "summary.json").write_text('{"eval_loss": 0.5}')
    monkeypatch.setattr(notebook, "run_command", lambda *_: None)
    (tmp_path / "curves.png").write_bytes(b"curves")
    run = runner.train("dataset=digits", tracking="none", hydra__run__dir=tmp_path)
    assert run.plot("curves").png == b"curves"
    assert (run.status, run.config.trainer.epochs, run.metrics["eval/loss"][0]) == ("FINISHED", 2, 0.5)


def test_a_result_is_what_the_command_wrote_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_command(module: str, arguments: list[str], *, quiet: bool) -> str:
        assert (module, arguments[:-1], quiet) == ("runner.verify", ["mesh=batch2", "verify.steps=2"], True)
        folder = Path(arguments[-1].partition("=")[2].strip("'"))
        folder.mkdir(parents=True)
        checks = [{"variable": name, "ratio": ratio} for name, ratio in (("", 0.5), ("a", "inf"), ("b", 2), ("b", 1))]
        (folder / "verify.json").write_text(json.dumps({"verified": False, "checks": checks}))
        return "a <table>"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebook, "run_command", run_command)
    drawn: list[object] = []
    monkeypatch.setattr(figures, "against", lambda path, *found: drawn.append(found[2]) or path.write_bytes(b"png"))
    found = runner.verify(mesh="batch2", verify__steps=2)
    assert (repr(found), found.content["verified"]) == ("a <table>", False)
    assert found.folder.parent == tmp_path / "outputs" / "runs"
    assert "a &lt;table&gt;</pre>" in found._repr_html_()
    assert found.plot().png == b"png"
    assert drawn == [{"": [("(loss)", 0.5), ("b", 2.0), ("a", math.inf)]}]
    with pytest.raises(runner.ConfigError, match=r"plot=x: there is no such picture; choose one of verify.png"):
        found.plot("x")


def test_a_sweep_is_its_table_also_where_a_job_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_command(module: str, arguments: list[str]) -> None:
        assert (module, arguments[0], arguments[2]) == ("runner", "-m", "mesh=batch2,batch4")
        raise EngineError("a job failed")

    monkeypatch.setattr(notebook, "run_command", run_command)
    sweep = partial(runner.sweep, f"hydra.sweep.dir={tmp_path}", mesh=["batch2", "batch4"])
    with pytest.raises(EngineError):
        sweep()
    (tmp_path / "table.csv").write_text('job,status,examples per second\n0,passed,"1,234"\n1,failed,\n')
    assert sweep().content["examples per second"][0] == 1234
    assert "<td>failed</td>" in sweep()._repr_html_()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "said.py").write_text(
        "import sys, time\n"
        "import os\n"
        "print('1%\\r2%\\rfirst', *{'FORCE_COLOR'} & {*os.environ}, flush=True)\n"
        "print('careful', file=sys.stderr)\n"
        "if len(sys.argv) > 1:\n"
        "    print('error: key=x: must be y', file=sys.stderr)\n"
        "    sys.exit(int(sys.argv[1]))\n"
    )
    return "said"


def test_a_cell_shows_what_a_command_prints(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()  # a notebook's output has no file descriptor
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("FORCE_COLOR", "1")  # Jupyter sets it
    result.run_command(module, [])
    assert out.getvalue() == "first\ncareful\n"


@pytest.mark.parametrize(("code", "kind"), [("2", runner.ConfigError), ("1", EngineError)])
def test_a_command_that_fails_raises_its_line(module: str, code: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^key=x: must be y$"):
        result.run_command(module, [code], quiet=True)
