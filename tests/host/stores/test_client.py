"""Objects are written whole, conditionally where asked, and read back through local copies."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from runner.host.folders import cache_folder
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> ObjectPath:
    client._copies.cache_clear()
    return ObjectPath("memory://test-client", request.node.name)


def test_of_two_creations_one_succeeds(folder: ObjectPath) -> None:
    client.create(folder / "lock", b"first")
    with pytest.raises(client.ChangedError):
        client.create(folder / "lock", b"second")
    assert client.read(folder / "lock") == b"first"


def test_a_creation_whose_answer_was_lost_counts(folder: ObjectPath) -> None:
    client.write(folder / "lock", b"mine")
    client.create(folder / "lock", b"mine")


def test_a_large_object_is_uploaded_in_parts_and_listed_with_its_size(folder: ObjectPath) -> None:
    data = os.urandom(client.PART + 5)
    with client.writing(folder / "a/large") as upload:
        for start in range(0, len(data), 1 << 20):
            upload.write(data[start : start + (1 << 20)])
    assert b"".join(client.pieces(folder / "a/large")) == data
    assert client.below(folder) == {"a/large": len(data)}
    assert client.names(folder) == ["a"]


def test_what_is_missing_or_too_large_is_told_apart(folder: ObjectPath) -> None:
    with pytest.raises(FileNotFoundError):
        client.read(folder / "none")
    assert client.size(folder / "none") is None
    client.write(folder / "some", b"12345")
    with pytest.raises(client.TooLargeError):
        client.read(folder / "some", 4)


def test_an_error_shows_no_query_of_a_url(folder: ObjectPath) -> None:
    text = "Error performing GET https://host/x?sig=hunter2&a=b in 3ms - 403: <?xml ..><Code>Denied</Code>"
    with pytest.raises(client.StoreError, match=r"x in 3ms - 403: Denied$") as raised, client._requesting(folder):
        raise ValueError(text)
    assert "hunter2" not in str(raised.value)


def stored(path: ObjectPath, data: bytes) -> str:
    client.write(path, data)
    return hashlib.sha256(data).hexdigest()


def test_a_local_copy_has_the_objects_bytes(folder: ObjectPath) -> None:
    sha256 = stored(folder / "x", b"12345")
    assert client.fetch(folder / "x", sha256, 5).read_bytes() == b"12345"
    client.remove(folder / "x")
    assert client.fetch(folder / "x", sha256, 5).read_bytes() == b"12345", "the process's own copy"
    client._copies.cache_clear()
    with pytest.raises(FileNotFoundError):
        client.fetch(folder / "x", sha256, 5)


@pytest.mark.parametrize("data", [b"12346", b"1234", b"123456", b""])
def test_an_object_with_other_bytes_is_rejected_and_not_kept(folder: ObjectPath, data: bytes) -> None:
    sha256 = stored(folder / "x", b"12345")
    client.write(folder / "x", data)
    with pytest.raises(client.MismatchError):
        client.fetch(folder / "x", sha256, 5)
    assert not list(Path(client._copies().name).iterdir())


@pytest.mark.parametrize("age", [60.0, 2 * 86400.0])
def test_copies_are_in_the_cache_and_those_of_a_killed_process_are_removed_after_a_day(age: float) -> None:
    cache = cache_folder("objects")
    left = cache / "copies-of-a-killed-process"
    left.mkdir(parents=True, exist_ok=True)
    os.utime(left, (time.time() - age, time.time() - age))
    client._copies.cache_clear()
    assert Path(client._copies().name).parent == cache
    assert left.exists() == (age < 86400.0)


def test_an_error_of_the_writer_itself_is_not_one_of_the_store(folder: ObjectPath) -> None:
    with pytest.raises(ZeroDivisionError), client.writing(folder / "x") as upload:
        upload.write(bytes([1 // 0]))
    with pytest.raises(FileNotFoundError) as raised, client.writing(folder / "x"):
        Path("/none/here").read_bytes()
    assert raised.value.filename == "/none/here"


def test_an_error_of_an_upload_is_one_of_the_store(folder: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def write(self, _: bytes) -> int:
            raise ValueError("403: https://host/x?sig=hunter2")

        def close(self) -> None:
            raise ValueError("404")

    monkeypatch.setattr(client.obstore, "open_writer", lambda *_, **__: Failing())
    with pytest.raises(client.StoreError, match=r"x: 403: https://host/x$"), client.writing(folder / "x") as upload:
        upload.write(b"123")
    with pytest.raises(client.StoreError, match="x: 404"), client.writing(folder / "x"):
        pass
