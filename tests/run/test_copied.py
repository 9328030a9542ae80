"""The copy of a run's folder in a store has its files, minute by minute and at the end, and ends no run."""

from __future__ import annotations

import errno
import json
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from runner.errors import ConfigError
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath
from runner.run import copied as copied_module
from runner.run.copied import RECORD, copied, target

WITHIN_S = 20.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://test-copied/{tmp_path.name}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run-1"
    (folder / "processes/1").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: mlp\n")
    (folder / "processes/1/runner.log").write_text("begins\n")
    return folder


def contents(path: ObjectPath) -> dict[str, bytes]:
    return {name: client.read(path / name) for name in client.below(path) if name != RECORD}


def record(path: ObjectPath) -> dict[str, object]:
    content: dict[str, object] = json.loads(client.read(path / RECORD))
    return content


def test_the_copy_follows_the_folder_and_ends_as_it_does(
    folder: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_module, "EVERY_S", 0.01)
    (tmp_path / "elsewhere").write_text("not of the run")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    copy = target(folder, url)
    with copied(folder, url):
        assert contents(copy) == {"config.yaml": b"name: mlp\n", "processes/1/runner.log": b"begins\n"}
        assert record(copy)["ended"] is False
        (folder / "runner.log").write_text("line\n")
        (folder / "config.yaml").unlink()
        deadline = time.monotonic() + WITHIN_S
        # Without reading them: one may be removed meanwhile.
        while set(client.below(copy)) != {RECORD, "processes/1/runner.log", "runner.log"}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (folder / "summary.json").write_text("{}")
    expected = {"processes/1/runner.log": b"begins\n", "runner.log": b"line\n", "summary.json": b"{}"}
    assert contents(copy) == expected
    assert record(copy) == {"folder": str(folder), "ended": True, "files": sorted(expected)}


def test_the_copy_of_a_run_that_fails_has_ended_too(folder: Path, url: str) -> None:
    def fail() -> None:
        (folder / "runner.log").write_text("fails\n")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), copied(folder, url):
        fail()
    assert contents(target(folder, url))["runner.log"] == b"fails\n"
    assert record(target(folder, url))["ended"] is True


def test_another_attempt_goes_on_with_the_copy(folder: Path, url: str) -> None:
    with copied(folder, url):
        (folder / "summary.json").write_text("{}")
    (folder / "summary.json").unlink()
    (folder / "config.yaml").write_text("name: cnn\n")
    with copied(folder, url):
        pass
    copy = target(folder, url)
    assert contents(copy) == {"config.yaml": b"name: cnn\n", "processes/1/runner.log": b"begins\n"}


def test_a_folder_with_other_objects_is_rejected_and_stays(folder: Path, url: str) -> None:
    client.write(target(folder, url) / "mine.txt", b"1")
    expected = r"tracking.copy_to=.*mine\.txt; name a new or empty folder"
    with pytest.raises(ConfigError, match=expected), copied(folder, url):
        pass
    assert contents(target(folder, url)) == {"mine.txt": b"1"}


def test_a_bucket_that_does_not_exist_is_rejected(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise client.NoBucketError("memory://test-copied: the bucket does not exist")

    monkeypatch.setattr(client, "below", fail)
    expected = "tracking.copy_to=memory://test-copied: does not exist; create the bucket"
    with pytest.raises(ConfigError, match=expected), copied(folder, url):
        pass


@pytest.mark.parametrize("leaves_a_part", [False, True])
def test_a_file_that_can_not_be_read_keeps_no_other_from_being_copied(
    leaves_a_part: bool, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copied_module, "EVERY_S", 0.01)
    upload = client.upload
    tries: list[str] = []

    def fail_for_one(file: Path, path: ObjectPath) -> None:
        if file.name != "config.yaml":
            upload(file, path)
            return
        tries.append(file.name)
        if leaves_a_part:
            client.write(path, b"na")
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(client, "upload", fail_for_one)
    copy = target(folder, url)
    expected = {"processes/1/runner.log"}
    if leaves_a_part:
        expected.add("config.yaml")
    with copied(folder, url):
        assert set(contents(copy)) == expected
        assert record(copy)["files"] == sorted(expected)
        deadline = time.monotonic() + WITHIN_S
        while len(tries) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    warning = f"warning: could not read {folder}/config.yaml: Permission denied; its copy is missing or old"
    assert capsys.readouterr().err.splitlines() == [warning]
    assert record(copy) == {"folder": str(folder), "ended": True, "files": sorted(expected)}
    monkeypatch.setattr(client, "upload", upload)
    with copied(folder, url):
        assert contents(copy)["config.yaml"] == b"name: mlp\n"


def test_the_copy_of_a_file_in_a_folder_that_can_not_be_entered_stays(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_file = Path.is_file

    def fail_for_one(path: Path) -> bool:
        if path.name == "runner.log":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    def fail(file: Path, path: ObjectPath) -> None:  # noqa: ARG001
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    with copied(folder, url):
        monkeypatch.setattr(Path, "is_file", fail_for_one)
        monkeypatch.setattr(client, "upload", fail)
    copy = target(folder, url)
    assert contents(copy)["processes/1/runner.log"] == b"begins\n"
    assert record(copy)["files"] == ["config.yaml", "processes/1/runner.log"]
    assert "could not read" in capsys.readouterr().err


def test_a_store_that_fails_at_an_upload_ends_the_start(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise client.StoreError("503")

    monkeypatch.setattr(client, "upload", fail)
    with pytest.raises(client.StoreError), copied(folder, url):
        pass


def test_a_store_that_fails_later_ends_no_run(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise client.StoreError("503")

    with copied(folder, url):
        monkeypatch.setattr(client, "write", fail)
    assert (
        f"could not copy the run's folder to {target(folder, url)}: 503; it is in {folder}" in capsys.readouterr().err
    )
    assert record(target(folder, url))["ended"] is False


@pytest.mark.parametrize("hangs", ["write", "size"])
def test_the_end_waits_only_shortly_for_a_store_that_has_failed(
    hangs: str, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copied_module, "EVERY_S", 0.01)
    monkeypatch.setattr(copied_module, "_SHORT_S", 0.3)
    released = threading.Event()
    writes: list[bool] = []
    real_size = client.size

    def fail(*_: object) -> None:
        writes.append(True)
        # The first update fails at once. With "write", the next one hangs.
        if hangs == "write" and len(writes) > 1:
            released.wait(60)
        raise client.StoreError("503")

    def size(path: ObjectPath) -> int | None:
        if hangs == "size":
            released.wait(60)
        return real_size(path)

    began = 0.0
    try:
        with copied(folder, url):
            monkeypatch.setattr(client, "write", fail)
            monkeypatch.setattr(client, "size", size)
            (folder / "runner.log").write_text("line\n")
            deadline = time.monotonic() + WITHIN_S
            while len(writes) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            began = time.monotonic()
        assert time.monotonic() - began < 10.0
        assert f": 503; it is in {folder}" in capsys.readouterr().err
    finally:
        released.set()


def test_the_end_of_a_run_copies_all_to_a_store_that_answers_again(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copied_module, "EVERY_S", 0.01)
    failed = threading.Event()
    may_end = threading.Event()
    real_write = client.write

    def fail(*_: object) -> None:
        failed.set()
        assert may_end.wait(WITHIN_S)
        raise client.StoreError("503")

    copy = target(folder, url)
    with copied(folder, url):
        monkeypatch.setattr(client, "write", fail)
        (folder / "runner.log").write_text("line\n")
        assert failed.wait(WITHIN_S)
        monkeypatch.setattr(copied_module, "EVERY_S", 3600.0)
        may_end.set()
        deadline = time.monotonic() + WITHIN_S
        while "training continues" not in capsys.readouterr().err:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        monkeypatch.setattr(client, "write", real_write)
    assert contents(copy)["runner.log"] == b"line\n"
    assert record(copy)["ended"] is True
    assert capsys.readouterr().err == ""


def test_only_the_first_process_copies_and_only_if_it_is_asked_to(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copied(folder, None):
        pass
    monkeypatch.setattr(copied_module, "current", lambda: type("Team", (), {"is_first": False}))
    with copied(folder, url):
        pass
    assert not client.below(target(folder, url))


def test_jobs_of_two_sweeps_have_two_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied_module, "outputs_dir", lambda: tmp_path)
    job = tmp_path / "sweeps/2026-11-26/0"
    assert target(job, "s3://bucket/all") == ObjectPath("s3://bucket", "all/sweeps/2026-11-26/0")
    assert target(Path("/elsewhere/mine"), "s3://bucket/all") == ObjectPath("s3://bucket", "all/mine")
