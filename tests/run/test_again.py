"""The command that continues an interrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.checkpoint import runs, storage
from runner.config.schema import ClusterConfig
from runner.host import paths
from runner.train.lines import continuing_line
from tests.training.checkpoint.test_storage import content, register


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs save unless they are told otherwise; two have, and the second began later."""
    monkeypatch.setattr(paths, "project_root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("aaaa", "bbbb")):
        saved(tmp_path / "outputs" / "checkpoints", name, 100.0 + number)
    return tmp_path / "outputs" / "checkpoints"


def saved(folder: Path, name: str, started: float) -> Path:
    """Makes a run with a checkpoint."""
    run = register(folder, name, tracked=True, overrides=[])
    runs.write_record(run.folder, {**run.record, "started": started})
    storage.write(run.folder, content(5, name))
    return run.folder


def test_a_run_is_named_by_its_id(place: Path) -> None:
    assert continuing_line(place / "aaaa", ClusterConfig()) == "To continue: python -m runner resume=aaaa"


def test_a_run_that_saved_elsewhere_is_named_by_its_folder(place: Path, tmp_path: Path) -> None:
    assert place.is_dir()
    folder = saved(tmp_path / "my runs", "cccc", 200.0)
    assert continuing_line(folder, ClusterConfig()) == "To continue: python -m runner 'resume=my runs/cccc'"


def test_a_run_without_a_checkpoint_prints_no_command(place: Path) -> None:
    assert continuing_line(place / "none", ClusterConfig()) == ""


def test_a_named_run_is_continued_by_the_same_command(place: Path) -> None:
    line = continuing_line(place / "none", ClusterConfig(), name="exp1")
    assert line == "To continue, start the same command again (resume=auto name=exp1)"


def test_who_started_the_processes_starts_them_again(place: Path) -> None:
    line = continuing_line(place / "bbbb", ClusterConfig(name="auto"))
    assert line == "To continue, start all processes as before: python -m runner resume=bbbb"
