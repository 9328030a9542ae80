"""Folders: what is not ours is neither written over nor removed."""

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from runner.cli.resolvers import register_resolvers
from runner.errors import ConfigError
from runner.host import folders
from runner.host.paths import conf_dir
from tests.data.conftest import python

ROOT = Path(__file__).resolve().parents[2]
REMOVING = ("rmtree", "unlink", "rmdir", "rename", "replace", "remove", "removedirs", "truncate", "ftruncate")

# Every file that removes or moves files, and why that can't hit what is not ours.
ALLOWED = {
    "runner/checkpoint": "checkpoints and records in a run's own folder",
    "runner/data/digest.py": "a digest that it has just written under a name of its own",
    "runner/data/sources/pydoc.py": "a text that it has just written under a name of its own",
    "runner/data/sources/prepared.py": "publishes a folder that it has just made, named by its digest, under its lock",
    "runner/train/export/write.py": "a file that it has just written into a folder that it was given",
    "runner/cli/export.py": "a folder of a random name that it made; the target, where an export wrote all",
    "runner/host/folders.py": "files by name, in a folder that was claimed, and folders that are empty",
    "runner/tracking/store.py": "an unfinished database of its own, whose place it takes",
}


def tree(folder: Path) -> dict[str, str | None]:
    return {str(one.relative_to(folder)): one.read_text() if one.is_file() else None for one in folder.rglob("*")}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "config.yaml").write_text("precious")
    (folder / "inner" / "runner.log").write_text("precious")
    return folder


HOLD = """
import sys, time
from runner.host import folders
folders.claim('hydra.run.dir', sys.argv[1])
print('claimed', flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = python(HOLD, str(tmp_path / "run"))
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_that_another_process_writes_into_is_refused_until_that_process_ends(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="another process is writing into this folder"):
        folders.claim("hydra.run.dir", tmp_path / "run")
    assert tree(tmp_path) == before
    holder.kill()
    holder.wait()
    folders.claim("hydra.run.dir", tmp_path / "run")


def test_commands_that_start_in_the_same_second_with_the_same_process_id_get_folders_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)
    names: list[str] = []
    for _ in range(4):
        register_resolvers()
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            composed = compose("config", return_hydra_config=True)
        names += [composed.hydra.run.dir, composed.hydra.sweep.dir]
        # Hydra asks several times, and for each of them it must be the same folder.
        assert [composed.hydra.run.dir, composed.hydra.sweep.dir] == names[-2:]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-[0-9a-f]{8}", Path(name).name)


def test_a_folder_with_something_else_is_refused_and_stays_as_it_is(data: Path, tmp_path: Path) -> None:
    before = tree(data)
    (tmp_path / "link").symlink_to(data)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for path in (data, tmp_path / "link", data / "config.yaml", data / "config.yaml" / "below", tmp_path / "gone"):
        with pytest.raises(
            ConfigError, match=r"hydra\.run\.dir=.*: (contains files that no run wrote|must be a folder)"
        ):
            folders.claim("hydra.run.dir", path)
    assert tree(data) == before


def test_removing_by_name_leaves_other_files_and_follows_no_link(data: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "sub").mkdir(parents=True)
    (own / "sub" / "a").touch()
    (own / "sub" / "b").touch()
    (own / "link").symlink_to(data / "config.yaml")
    folders.remove_files(own, ["sub/a", "link", "missing", "missing/too"])
    assert tree(own) == {"sub": None, "sub/b": ""}
    assert (data / "config.yaml").read_text() == "precious"


def test_every_place_that_removes_files_is_known() -> None:
    found = set()
    for folder in ("runner", "hydra_plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            if any(_removes(call) for call in calls):
                name = path.relative_to(ROOT).as_posix()
                found.add("runner/checkpoint" if name.startswith("runner/checkpoint/") else name)
    assert found == set(ALLOWED), "say of a new one why it can't hit what is not ours"


def _removes(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in REMOVING:
        return False
    if call.func.attr == "replace":  # a path's takes one place; a text's two, and a dataclass's keywords
        return len(call.args) == 1 and not call.keywords
    return call.func.attr != "remove" or ast.unparse(call.func.value) == "os"
