"""What `runner.init` writes, and which names it rejects."""

import os
from pathlib import Path

import pytest

from runner.cli.commands import run


def test_a_project_is_named_as_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("runner.cli.init", [str(tmp_path / "two-spirals")]) == 0
    folder = tmp_path / "two-spirals"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {".gitignore", "README.md", "my_model.py", "my_data.py", "my_task.py", "test_two_spirals.py"} < names
    assert {f"conf/{group}/mine.yaml" for group in ("model", "dataset", "task", "experiment")} < names
    assert "experiment: two-spirals\n" in (folder / "conf/experiment/mine.yaml").read_text()
    assert [path for path in folder.rglob("*") if path.is_file() and "my_project" in path.read_text()] == []
    assert f"cd {folder}" in capsys.readouterr().out


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert run("runner.cli.init", [str(tmp_path)]) == 0
    assert (tmp_path / "my_data.py").is_file()


def test_a_folder_with_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert run("runner.cli.init", [str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told == f"error: {tmp_path}: has files already; name a new folder, or an empty one\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("given", [None, "", "a|b", " ", "--force", ".hidden", "a b", "a\nb", "x" * 120])
def test_an_invalid_name_is_an_error_of_one_line(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("runner.cli.init", [] if given is None else given.split("|")) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert ": " in told
    assert len(told.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="needs a folder below a file")
def test_a_folder_that_can_not_be_made_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("runner.cli.init", [str(tmp_path / "file" / "mine")]) == 2
    assert "can't be written (Not a directory)" in capsys.readouterr().err
