"""A folder of an object store is copied once as a whole, and again only if it was changed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")

from runner.host.stores import cache, client, mirror
from runner.host.stores.urls import ObjectPath


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mirror.local.cache_clear()
    root = ObjectPath("memory://test-mirror", tmp_path.name)
    client.write(root / "train/a.txt", b"first")
    client.write(root / "train/deep/b.txt", b"second")
    return root


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    pieces = client.pieces

    def noted(path: ObjectPath) -> Any:
        found.append(path.name)
        return pieces(path)

    monkeypatch.setattr(client, "pieces", noted)
    return found


def again(root: ObjectPath) -> Path:
    """Returns the mirror as another process finds it."""
    mirror.local.cache_clear()
    return mirror.local(str(root))


def test_a_folder_has_its_files_and_its_name(stored: ObjectPath, transfers: list[str]) -> None:
    folder = mirror.local(str(stored))
    assert folder.name == stored.name
    assert (folder / "train" / "a.txt").read_bytes() == b"first"
    assert (folder / "train" / "deep" / "b.txt").read_bytes() == b"second"
    assert sorted(transfers) == ["a.txt", "b.txt"]
    assert again(stored) == folder
    assert len(transfers) == 2


def test_an_object_is_a_file(stored: ObjectPath) -> None:
    file = mirror.local(str(stored / "train/a.txt"))
    assert file.name == "a.txt"
    assert file.read_bytes() == b"first"


def test_a_changed_object_makes_another_mirror_and_leaves_the_one_that_is_read(stored: ObjectPath) -> None:
    before = mirror.local(str(stored))
    client.write(stored / "train/a.txt", b"other")
    assert mirror.local(str(stored)) == before
    after = again(stored)
    assert after != before
    assert (after / "train" / "a.txt").read_bytes() == b"other"
    assert (before / "train" / "a.txt").read_bytes() == b"first"


def test_nothing_there_is_an_error_of_its_own(stored: ObjectPath) -> None:
    with pytest.raises(mirror.MissingError):
        mirror.local(str(stored / "none"))


def test_an_object_that_is_changed_meanwhile_is_read_again(
    stored: ObjectPath, monkeypatch: pytest.MonkeyPatch, transfers: list[str]
) -> None:
    pieces = client.pieces
    changes = [b"changed meanwhile"]

    def changed(path: ObjectPath) -> Any:
        yield from pieces(path)
        if changes:
            client.write(stored / "train/a.txt", changes.pop())

    monkeypatch.setattr(client, "pieces", changed)
    folder = mirror.local(str(stored))
    assert (folder / "train" / "a.txt").read_bytes() == b"changed meanwhile"
    assert len(transfers) > 2


def test_an_object_that_never_stays_the_same_ends_with_an_error(
    stored: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = client.pieces

    def changed(path: ObjectPath) -> Any:
        yield from pieces(path)
        client.write(stored / "train/a.txt", os.urandom(8))

    monkeypatch.setattr(client, "pieces", changed)
    with pytest.raises(client.StoreError, match="was changed while it was read; try again"):
        mirror.local(str(stored))
    assert [path.suffix for path in mirror.folder().iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("name", ["../../outside", "a/../../outside", "a\\..\\b"])
def test_no_object_leads_out_of_the_mirror(
    stored: ObjectPath, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tag = client.Tag("x", None)
    monkeypatch.setattr(client, "versions", lambda _: {name: (1, tag)})
    with pytest.raises(client.StoreError, match="has an object whose path is not that of a file"):
        mirror.local(str(stored))
    assert not list(tmp_path.rglob("outside"))


def test_empty_objects_with_the_names_of_folders_are_folders(
    stored: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = client.versions(stored)
    marker = (0, client.Tag("x", None))
    monkeypatch.setattr(client, "versions", lambda _: {"": marker, "train": marker, "train/deep": marker, **versions})
    folder = mirror.local(str(stored))
    assert (folder / "train" / "deep" / "b.txt").read_bytes() == b"second"


def test_an_object_with_content_and_the_name_of_a_folder_is_an_error(
    stored: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"train": (5, client.Tag("x", None)), **client.versions(stored)}
    monkeypatch.setattr(client, "versions", lambda _: versions)
    with pytest.raises(client.StoreError, match="train is both a file and a folder"):
        mirror.local(str(stored))


def test_a_mirror_that_is_removed_in_part_is_not_found(stored: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    # This process must not be one that reads it.
    monkeypatch.setattr(mirror, "share_until_exit", lambda _: None)
    first = mirror.local(str(stored))
    monkeypatch.setattr(cache, "LARGEST", 15)
    client.write(stored.parent / "new" / "file", b"12345678")

    def killed(path: Path, **_: object) -> None:
        (path / first.name / "train" / "a.txt").unlink()
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(mirror.shutil, "rmtree", killed)
        with pytest.raises(SystemExit):
            mirror.local(str(stored.parent / "new"))
    folder = again(stored)
    assert (folder / "train" / "a.txt").read_bytes() == b"first"


def test_the_least_recently_used_goes_unless_a_process_reads_it(
    stored: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LARGEST", 20)
    names = ("read", "old", "new")
    for name in names:
        client.write(stored.parent / name / "file", b"12345678")
    # Another process reads the oldest of them.
    program = (
        "import sys\n"
        "from runner.host.stores import client, mirror\n"
        "from runner.host.stores.urls import ObjectPath\n"
        "client.write(ObjectPath('memory://test-mirror', 'read/file'), b'12345678')\n"
        "print(mirror.local('memory://test-mirror/read'), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        read = Path(process.stdout.readline().strip())
        # This process must not be one that reads `old`.
        monkeypatch.setattr(mirror, "share_until_exit", lambda _: None)
        old = mirror.local("memory://test-mirror/old")
        for age, path in enumerate((old, read)):
            when = time.time() - 1000 * (age + 1)
            os.utime(path.parent, (when, when))
        new = mirror.local("memory://test-mirror/new")
        assert read.exists()
        assert not old.exists()
        assert new.exists()
        process.communicate("")
    client.write(stored.parent / "newer/file", b"12345678")
    mirror.local("memory://test-mirror/newer")
    assert not read.exists()


def test_what_a_killed_process_left_is_removed(stored: ObjectPath) -> None:
    left = mirror.folder() / ".unfinished-1"
    left.mkdir(parents=True)
    (left / "x").write_text("x")
    os.utime(left, (0, 0))
    mirror.local(str(stored))
    assert not left.exists()
