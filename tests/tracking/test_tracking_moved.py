"""A store whose folder was moved or copied: a warning says where MLflow keeps the files, and its fix works."""

from __future__ import annotations

import shutil
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
