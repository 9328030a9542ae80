"""Files in a store are written whole, conditionally where asked, and read back through local copies."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from runner.checkpoint import files
from runner.checkpoint.files import DamagedError, StoreError
from runner.checkpoint.places import ObjectPath, Place, place


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> ObjectPath:
    return ObjectPath("memory://test-files", request.node.name)


def content(path: Place, largest: int = 1 << 30) -> bytes:
    with files.opened(path, largest) as file:
        return file.read()


def below(folder: ObjectPath) -> set[str]:
    """The objects below a folder, by their path relative to it."""
    store = files._store(folder.store)
    entries = [entry for part in files.obstore.list(store, folder.key) for entry in part]
    return {str(entry["path"]).removeprefix(f"{folder.key}/") for entry in entries}


def test_a_place_is_what_its_text_was() -> None:
    assert place("a/b") == Path("a/b")
    path = place("s3://bucket/a/")
    assert path == ObjectPath("s3://bucket", "a")
    texts = [str(path / "b"), (path / "b").name, str((path / "b").parent), str(path.parent)]
    assert texts == ["s3://bucket/a/b", "b", "s3://bucket/a", "s3://bucket"]
    assert place(str(path / "b")) == path / "b"


@pytest.mark.parametrize("is_local", [True, False])
def test_of_two_creations_one_succeeds(folder: ObjectPath, tmp_path: Path, is_local: bool) -> None:
    path = (tmp_path if is_local else folder) / "claim"
    files.create(path, b"first")
    with pytest.raises(FileExistsError):
        files.create(path, b"second")
    assert content(path) == b"first"


def test_a_creation_whose_answer_was_lost_counts(folder: ObjectPath) -> None:
    files.write(folder / "claim", b"mine")
    files.create(folder / "claim", b"mine")


def test_a_large_object_is_uploaded_in_parts(folder: ObjectPath) -> None:
    data = os.urandom(files.PART + 5)

    def pieces() -> Iterator[memoryview]:
        for start in range(0, len(data), 1 << 20):
            yield memoryview(data)[start : start + (1 << 20)]

    files.write_pieces(folder / "a/large", pieces())
    assert content(folder / "a/large") == data
    assert files.names(folder) == ["a"]
    files.remove_folder(folder)
    assert files.names(folder) == []


def test_an_upload_that_fails_leaves_no_object(folder: ObjectPath) -> None:
    def pieces() -> Iterator[memoryview]:
        yield memoryview(b"123")
        raise ValueError("403: https://host/x?sig=hunter2")

    with pytest.raises(StoreError, match=r"x: 403: https://host/x$"):
        files.write_pieces(folder / "x", pieces())
    assert not files.exists(folder / "x")


def test_what_is_missing_or_too_large_is_damaged_and_leaves_no_copy(
    folder: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not files.exists(folder / "none")
    with pytest.raises(DamagedError, match="none is missing"):
        content(folder / "none")
    files.write(folder / "some", b"12345")
    with pytest.raises(DamagedError, match="some is larger than 4 bytes"):
        content(folder / "some", 4)
    with files.opened(folder / "some", 5) as file:
        assert Path(f"/dev/fd/{file.fileno()}").read_bytes() == b"12345"
        assert not list((tmp_path / "runner" / "objects").iterdir()), "it has no name"


def test_an_error_shows_no_query_of_a_url(folder: ObjectPath) -> None:
    text = "Error performing GET https://host/x?sig=hunter2&a=b in 3ms - 403: <?xml ..><Code>Denied</Code>"
    with pytest.raises(StoreError, match=r"x in 3ms - 403: Denied$") as raised, files._requesting(folder):
        raise ValueError(text)
    assert "hunter2" not in str(raised.value)
