"""The command that continues an interrupted run."""

from pathlib import Path

import pytest

from runner.checkpoint import runs, storage
from runner.config.schema import ClusterConfig
from runner.host import paths
from runner.train.lines import continuing_line
from tests.training.checkpoint.test_storage import content, register


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with runs that have a checkpoint: two where runs save by default, and one elsewhere."""
    monkeypatch.setattr(paths, "project_root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("outputs/checkpoints/aaaa", "outputs/checkpoints/bbbb", "my runs/cccc")):
        folder = tmp_path / name
        run = register(folder.parent, folder.name, tracked=True, overrides=[])
        runs.write_record(run.folder, {**run.record, "started": 100.0 + number})
        storage.write(run.folder, content(5, folder.name))
    return tmp_path


SAME = "To continue, start the same command again"
BEFORE = "To continue, start all processes as before:"
AGAIN = "To continue: python -m runner"


@pytest.mark.parametrize(
    ("folder", "cluster", "name", "line"),
    [
        ("outputs/checkpoints/aaaa", "single", None, f"{AGAIN} resume=aaaa"),
        ("my runs/cccc", "single", None, f"{AGAIN} 'resume=my runs/cccc'"),  # as it saved elsewhere
        ("outputs/checkpoints/none", "single", None, ""),
        ("outputs/checkpoints/none", "single", "exp1", f"{SAME} (resume=auto name=exp1)"),
        ("outputs/checkpoints/bbbb", "auto", None, f"{BEFORE} python -m runner resume=bbbb"),
    ],
)
def test_a_run_is_continued_as_it_was_started(
    project: Path, folder: str, cluster: str, name: str | None, line: str
) -> None:
    assert continuing_line(project / folder, ClusterConfig(name=cluster), name=name) == line
