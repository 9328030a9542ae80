"""A store whose folder was moved or copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow.tracking._tracking_service import utils

from runner.tracking.store import Store, open_store


def opened(folder: Path) -> Store:
    utils._artifact_repos_cache.clear()  # MLflow keeps a run's place as long as a process lives
    return open_store(f"sqlite:///{folder / 'mlflow.db'}", "mine")


def a_run(store: Store, text: str) -> str:
    run = str(store.client.create_run(store.experiment_id).info.run_id)
    store.client.log_text(run, text, "note.txt")
    return run


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_what_was_recorded_is_found_and_new_files_lie_beside_the_store(tmp_path: Path, how: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    run = a_run(opened(old), "before")
    (shutil.move if how == "moved" else shutil.copytree)(old, new)
    store = opened(new)
    (new / "mlartifacts" / run / "artifacts" / "note.txt").write_text("here")
    assert "here" in Path(store.client.download_artifacts(run, "note.txt", str(tmp_path))).read_text()
    store.client.log_text(run, "after", "more.txt")
    later = a_run(store, "later")
    assert (new / "mlartifacts" / run / "artifacts" / "more.txt").read_text() == "after"
    assert (new / "mlartifacts" / later / "artifacts" / "note.txt").is_file()
    assert old.exists() == (how == "copied")
    assert [path.name for path in old.rglob("more.txt")] == []


def test_files_that_a_user_put_elsewhere_stay_there(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other" / "mlartifacts"
    own.mkdir()
    a_run(opened(own), "mine")
    made = opened(own).client.create_experiment("theirs", other.as_uri())
    assert opened(own).client.get_experiment(made).artifact_location == other.as_uri()
