"""Writes to a store that rejects requests for a while, throttles, cuts connections, or loses what it has answered."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from runner.host.stores import cache, client
from runner.host.stores.urls import ObjectPath
from tests import object_server
from tests.object_server import BUCKET, CUTS, THROTTLES, UNAVAILABLE, Proxy

needs_moto = pytest.mark.skipif(object_server.interpreter() is None, reason="needs moto: see tests/object_server.py")

# Longer than the library's own limit of 10 retries takes.
LONG_S = 8.0


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    client._store.cache_clear()
    with object_server.moto() as port, object_server.proxied(Proxy(port)) as proxy:
        for name, value in proxy.environment().items():
            monkeypatch.setenv(name, value)
        yield proxy
    client._store.cache_clear()


def path(*names: str) -> ObjectPath:
    return ObjectPath(f"s3://{BUCKET}", "/".join(names))


@pytest.mark.nightly
@needs_moto
@pytest.mark.parametrize("trouble", [UNAVAILABLE, THROTTLES, CUTS])
def test_a_trouble_that_passes_loses_no_write(proxy: Proxy, trouble: str) -> None:
    data = os.urandom(client.PART + 5)
    proxy.trouble = trouble
    threading.Timer(LONG_S, setattr, (proxy, "trouble", "")).start()
    client.write(path("small"), b"12345")
    with client.writing(path("large")) as upload:
        upload.write(data)
    assert client.read(path("small")) == b"12345"
    proxy.trouble = ""
    assert client.read(path("large")) == data
    assert proxy.rejected > 0


@pytest.mark.nightly
@needs_moto
@pytest.mark.parametrize("size", [5, 2 * client.PART + 5])
def test_an_upload_that_was_answered_but_not_stored_fails(proxy: Proxy, size: int) -> None:
    proxy.loses = 1
    target = path("step-000000007", "abc", "arrays-00000.safetensors")
    with pytest.raises(client.StoreError), client.writing(target) as upload:
        upload.write(bytes(size))
    assert proxy.lost
    assert ("partNumber" in proxy.lost[0]) == (size > client.PART)


@pytest.mark.nightly
@needs_moto
def test_an_answer_that_is_cut_in_its_middle_is_asked_for_again(proxy: Proxy) -> None:
    client.write(path("folder", "small"), b"12345")
    proxy.trouble = CUTS
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            client.read(path("folder", "none"))
        assert client.below(path("folder")) == {"small": 5}
        assert client.names(path("folder")) == ["small"]
    assert proxy.rejected > 5


def test_a_request_that_is_rejected_is_made_again_some_times(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ObjectPath("memory://test-losses", "again")
    monkeypatch.setattr(client, "_WAIT_S", 0.0)
    asked: list[str] = []

    def fail(_: object, key: str) -> None:
        asked.append(key)
        raise ValueError("the server returned status code 403 Forbidden")

    monkeypatch.setattr(client.obstore, "get", fail)
    with pytest.raises(client.StoreError, match="403"):
        client.read(target)
    assert len(asked) == client._TRIES
    monkeypatch.setattr(client, "_RETRY_S", -1.0)
    with pytest.raises(client.StoreError):
        client.read(target)
    assert len(asked) == client._TRIES + 1


@pytest.mark.parametrize("function", ["get", "delete"])
def test_a_request_whose_answer_is_cut_is_made_again_for_a_time(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ObjectPath("memory://test-losses", "cut")
    client.write(target, b"12")
    monkeypatch.setattr(client, "_WAIT_S", 0.0)
    request = getattr(client.obstore, function)
    failures = iter(range(3 * client._TRIES))

    def fail_at_first(*args: object) -> object:
        if next(failures, None) is None:
            return request(*args)
        raise ValueError("Generic S3 error: Error performing POST - HTTP error: request or response body error")

    monkeypatch.setattr(client.obstore, function, fail_at_first)
    if function == "get":
        assert client.read(target) == b"12"
    else:
        client.remove(target)
        assert client.size(target) is None
    failures = iter(range(3 * client._TRIES))
    monkeypatch.setattr(client, "_RETRY_S", -1.0)
    with pytest.raises(client.CutError, match="body error"):
        client.read(target) if function == "get" else client.remove(target)
    assert next(failures) == 1


def test_a_download_that_is_cut_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(client, "_WAIT_S", 0.0)
    content = bytes(100)
    target = ObjectPath("memory://test-losses", "download")
    client.write(target, content)
    cuts = iter(range(2 * client._TRIES))

    def pieces(_: ObjectPath) -> Iterator[bytes]:
        yield content[:60]
        if next(cuts, None) is not None:
            raise client.CutError("error decoding response body")
        yield content[60:]

    monkeypatch.setattr(client, "pieces", pieces)
    assert cache.fetch(target, hashlib.sha256(content).hexdigest(), 100).read_bytes() == content
    assert next(cuts, None) is None
    # A download that has taken longer than requests are made again for is begun again too, but not for ever.
    monkeypatch.setattr(client, "_RETRY_S", -1.0)
    other = ObjectPath("memory://test-losses", "again")
    digest = hashlib.sha256(content).hexdigest()
    cuts = iter(range(client._LEAST_TRANSFERS))
    with pytest.raises(client.CutError):
        cache.fetch(other, digest.replace(digest[0], "0"), 100)
    assert next(cuts, None) is None


def test_a_line_says_that_a_store_has_not_answered_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = threading.Event()

    def wait(*_: object) -> None:
        assert answered.wait(30)
        raise FileNotFoundError

    monkeypatch.setattr(client.obstore, "get", wait)
    monkeypatch.setattr(client, "_SILENT_S", 0.05)
    threading.Timer(0.5, answered.set).start()
    with pytest.raises(FileNotFoundError):
        client.read(ObjectPath("memory://test-losses", "silent"))
    assert capsys.readouterr().err.splitlines() == [
        "warning: memory://test-losses has not answered for 0 s; trying for up to 2.5 minutes"
    ]
    with pytest.raises(FileNotFoundError):
        client.read(ObjectPath("memory://test-losses", "at once"))
    assert capsys.readouterr().err == ""


@pytest.mark.nightly
@needs_moto
def test_a_bucket_that_does_not_exist_is_told_from_an_object_that_does_not(proxy: Proxy) -> None:
    missing = ObjectPath("s3://no-such-bucket", "run")
    requests: list[Callable[[], object]] = [
        lambda: client.below(missing),
        lambda: client.names(missing),
        lambda: client.read(missing),
        lambda: list(client.pieces(missing)),
        lambda: client.write(missing, b"1"),
        lambda: client.create(missing, b"1"),
        lambda: client.remove(missing),
    ]
    for request in requests:
        with pytest.raises(client.NoBucketError, match=r"^s3://no-such-bucket: the bucket does not exist$"):
            request()
    with pytest.raises(FileNotFoundError):
        client.read(path("none"))
    assert client.names(path("none")) == []
    assert proxy.requests < 15


@pytest.mark.parametrize("code", ["NoSuchBucket", "ContainerNotFound", "NoSuchKey"])
@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError])
def test_a_missing_bucket_is_no_missing_object(
    code: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fail(_: object, key: str) -> None:
        asked.append(key)
        raise kind(f"Error performing GET - 404 Not Found: <?xml ..><Error><Code>{code}</Code></Error>")

    monkeypatch.setattr(client, "_WAIT_S", 0.0)
    monkeypatch.setattr(client.obstore, "get", fail)
    with pytest.raises(OSError, match=r"exist|NoSuchKey") as raised:
        client.read(ObjectPath("memory://test-losses", "x"))
    is_missing_bucket = code != "NoSuchKey"
    assert isinstance(raised.value, client.NoBucketError) == is_missing_bucket
    assert isinstance(raised.value, FileNotFoundError) == (not is_missing_bucket and kind is FileNotFoundError)
    if is_missing_bucket:
        assert str(raised.value) == "memory://test-losses: the bucket does not exist"
        assert len(asked) == 1


def test_a_conditional_write_is_made_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ObjectPath("memory://test-losses", "attempt")
    asked: list[str] = []

    def fail(_: object, key: str, data: bytes, *, mode: object) -> None:  # noqa: ARG001
        asked.append(key)
        raise ValueError("error sending request")

    def write() -> None:
        client.create(target, b"1")

    monkeypatch.setattr(client, "_WAIT_S", 0.0)
    monkeypatch.setattr(client, "_RETRY_S", 0.2)
    monkeypatch.setattr(client.obstore, "put", fail)
    with pytest.raises(client.StoreError, match="sending request"):
        write()
    count = len(asked)
    assert count > client._TRIES
    monkeypatch.setattr(client, "_RETRY_S", -1.0)
    with pytest.raises(client.StoreError):
        write()
    assert len(asked) == count + 1


@pytest.mark.parametrize("request_of", ["put", "get"])
def test_a_line_says_so_for_a_lock_and_for_a_large_object_too(
    request_of: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = threading.Event()

    def wait(*_: object, **__: object) -> None:
        assert answered.wait(30)
        raise FileNotFoundError

    def ask() -> None:
        target = ObjectPath("memory://test-losses", "silent")
        if request_of == "put":
            client.create(target, b"1")
        else:
            next(client.pieces(target))

    monkeypatch.setattr(client.obstore, request_of, wait)
    monkeypatch.setattr(client, "_SILENT_S", 0.05)
    threading.Timer(0.5, answered.set).start()
    with pytest.raises(FileNotFoundError):
        ask()
    assert capsys.readouterr().err.count("memory://test-losses has not answered for 0 s") == 1


def test_an_upload_that_the_store_has_failed_is_not_tried_again_to_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Failing:
        def write(self, _: bytes) -> int:
            raise ValueError("error sending request")

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(client.obstore, "open_writer", lambda *_, **__: Failing())
    with (
        pytest.raises(client.StoreError, match="sending request"),
        client.writing(ObjectPath("memory://test-losses", "x")) as upload,
    ):
        upload.write(b"123")
    assert not closed


@pytest.mark.parametrize("stored", [None, b"1234"])
def test_a_store_that_does_not_have_what_it_answered_for_fails_the_write(
    stored: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = ObjectPath("memory://test-losses", tmp_path.name) / "x"
    put = client.obstore.put
    source = tmp_path / "source"
    source.write_bytes(b"12345")

    def lose(store: object, key: str, data: bytes) -> None:  # noqa: ARG001
        if stored is not None:
            put(store, key, stored)

    class Losing:
        def write(self, data: bytes) -> int:
            return len(data)

        def close(self) -> None:
            lose(client._store(target.store), target.key, b"")

    monkeypatch.setattr(client, "_WAIT_S", 0.0)
    monkeypatch.setattr(client.obstore, "put", lose)
    monkeypatch.setattr(client.obstore, "open_writer", lambda *_, **__: Losing())
    with pytest.raises(client.StoreError, match="5 bytes were sent and answered, but the store"):
        client.write(target, b"12345")
    with pytest.raises(client.StoreError, match="5 bytes were sent and answered, but the store"):
        client.upload(source, target)
