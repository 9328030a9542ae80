"""Writes to a store that rejects requests for a while, or throttles."""

import os
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("obstore")

from runner.checkpoint import files
from runner.checkpoint.places import ObjectPath
from tests import object_server
from tests.object_server import BUCKET, THROTTLES, UNAVAILABLE, Proxy
from tests.training.checkpoint.test_files import content

needs_moto = pytest.mark.skipif(object_server.interpreter() is None, reason="needs moto: see tests/object_server.py")

# Longer than the library's own limit of 10 retries takes.
LONG_S = 8.0


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    files._store.cache_clear()
    with object_server.moto() as port:
        proxy = Proxy(port)
        with object_server.proxied(proxy):
            for name, value in proxy.environment().items():
                monkeypatch.setenv(name, value)
            yield proxy
    files._store.cache_clear()


def path(*names: str) -> ObjectPath:
    return ObjectPath(f"s3://{BUCKET}", "/".join(names))


@pytest.mark.nightly
@needs_moto
@pytest.mark.parametrize("trouble", [UNAVAILABLE, THROTTLES])
def test_a_trouble_that_passes_loses_no_write(proxy: Proxy, trouble: str) -> None:
    data = os.urandom(files.PART + 5)
    proxy.trouble = trouble
    threading.Timer(LONG_S, setattr, (proxy, "trouble", "")).start()
    files.write(path("small"), b"12345")
    files.write_pieces(path("large"), iter([memoryview(data)]))
    assert content(path("small")) == b"12345"
    proxy.trouble = ""
    assert content(path("large")) == data
    assert proxy.rejected > 0
