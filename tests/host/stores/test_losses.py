"""Writes to a store that rejects requests for a while, or throttles."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("obstore")

from runner.host.stores import client
from runner.host.stores.urls import ObjectPath
from tests import object_server
from tests.object_server import BUCKET, THROTTLES, UNAVAILABLE, Proxy

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
@pytest.mark.parametrize("trouble", [UNAVAILABLE, THROTTLES])
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


@pytest.mark.parametrize("code", ["NoSuchBucket", "ContainerNotFound", "NoSuchKey"])
@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError])
def test_a_missing_bucket_is_no_missing_object(
    code: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise kind(f"Error performing GET - 404 Not Found: <?xml ..><Error><Code>{code}</Code></Error>")

    monkeypatch.setattr(client.obstore, "get", fail)
    with pytest.raises(OSError, match=r"exist|NoSuchKey") as raised:
        client.read(ObjectPath("memory://test-losses", "x"))
    is_missing_bucket = code != "NoSuchKey"
    assert isinstance(raised.value, client.NoBucketError) == is_missing_bucket
    assert isinstance(raised.value, FileNotFoundError) == (not is_missing_bucket and kind is FileNotFoundError)
    if is_missing_bucket:
        assert str(raised.value) == "memory://test-losses: the bucket does not exist"
