"""A store whose folder was moved or copied: a warning says where MLflow keeps the files, and its fix works."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from mlflow.tracking._tracking_service import utils

from runner.tracking.store import Store, open_store


def opened(folder: Path, experiment: str = "mine") -> Store:
    utils._artifact_repos_cache.clear()  # MLflow keeps a run's artifact location as long as a process lives
    return open_store(f"sqlite:///{folder / 'mlflow.db'}", experiment)


def a_run(store: Store, text: str) -> str:
    run = str(store.client.create_run(store.experiment_id).info.run_id)
    store.client.log_text(run, text, "note.txt")
    return run


def test_the_command_of_the_warning_links_a_moved_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old" / "outputs", tmp_path / "a new one" / "outputs"
    old.mkdir(parents=True)
    run = a_run(opened(old), "before")
    new.parent.mkdir()
    shutil.move(old, new)
    assert capsys.readouterr().err == ""
    opened(new)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"artifacts of experiment mine are stored in {old / 'mlartifacts'}, not in {new / 'mlartifacts'} " in line
    subprocess.run(line.partition("to the new one: ")[2], shell=True, check=True)
    store = opened(new)
    assert capsys.readouterr().err == ""
    assert Path(store.client.download_artifacts(run, "note.txt", str(tmp_path))).read_text() == "before"
    later = a_run(store, "later")
    assert (new / "mlartifacts" / later / "artifacts" / "note.txt").read_text() == "later"


def test_a_copied_folder_needs_a_new_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    a_run(opened(old), "before")
    shutil.copytree(old, new)
    opened(new)
    assert capsys.readouterr().err.endswith("; set tracking.experiment=<new name> for new runs\n")
    run = a_run(opened(new, "another"), "later")
    assert (new / "mlartifacts" / run / "artifacts" / "note.txt").is_file()
    assert capsys.readouterr().err == ""


def test_artifacts_that_a_user_stores_elsewhere_are_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = tmp_path / "own", tmp_path / "elsewhere"
    own.mkdir()
    a_run(opened(own), "mine")
    opened(own).client.create_experiment("theirs", other.as_uri())
    assert opened(own, "theirs").client.get_experiment_by_name("theirs").artifact_location == other.as_uri()
    assert capsys.readouterr().err == ""
