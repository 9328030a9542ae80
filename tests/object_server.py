"""A server of S3's protocol on loopback: moto's, and a proxy before it that rejects or delays requests.

moto is not in the tests' environment, because its libraries are many: `.ci/nightly` installs it into `.venv/stores`.
The environment variable RUNNER_TESTS_MOTO names another interpreter that has it.
"""

from __future__ import annotations

import http.client
import os
import random
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from runner.cluster.launch import free_port

ROOT = Path(__file__).parents[1]
_START_S = 60.0
BUCKET = "bucket"

# Troubles of a store that last for a while.
UNAVAILABLE, THROTTLES = "503", "throttle"
_FATES = {
    UNAVAILABLE: ("503",),
    THROTTLES: ("SlowDown", "429", "slow", "answer"),
}
_REJECTIONS = {
    "503": (503, b""),
    "500": (500, b""),
    "429": (429, b""),
    "SlowDown": (503, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"),
}
_SLOW_S = 1.0


def interpreter() -> str | None:
    """Returns the interpreter that has moto; None if there is none."""
    named = os.environ.get("RUNNER_TESTS_MOTO")
    if named:
        return named
    installed = ROOT / ".venv" / "stores" / "bin" / "python"
    return str(installed) if installed.exists() else None


@contextmanager
def moto(*, own_session: bool = False) -> Iterator[int]:
    """Yields the port of a server with an empty bucket.

    Args:
      own_session: whether Linux's scheduler counts the server's work apart from this process's.
    """
    python = interpreter()
    assert python is not None
    port = free_port()
    command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=own_session
    ) as server:
        try:
            _make_bucket(port, time.monotonic() + _START_S)
            yield port
        finally:
            server.kill()


def _make_bucket(port: int, deadline: float) -> None:
    while True:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@dataclass
class Proxy:
    """A proxy before a server.

    Attributes:
      target: port of the server.
      rejects: share of the requests that get an error in place of an answer.
      delay: seconds before each answer.
      trouble: `UNAVAILABLE`, `THROTTLES` or empty: what happens to every request while it is set.
      port: of the proxy.
      requests: that came.
      rejected: of them.
    """

    target: int
    rejects: float = 0.0
    delay: float = 0.0
    trouble: str = ""
    port: int = 0
    requests: int = 0
    rejected: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(3))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def environment(self) -> dict[str, str]:
        """Returns what a client's environment needs."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "hunter2hunter2",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }

    def fate(self) -> str:
        """Returns what happens to a request, and counts it."""
        with self.lock:
            self.requests += 1
            if self.trouble:
                fate = self.draw.choice(_FATES[self.trouble])
            elif self.draw.random() < self.rejects:
                fate = self.draw.choice(("503", "500"))
            else:
                return "answer"
            self.rejected += fate != "answer"
            return fate


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: the client was killed."""


@contextmanager
def proxied(proxy: Proxy) -> Iterator[Proxy]:
    """Runs a proxy for the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_request(self) -> None:
            fate = proxy.fate()
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(proxy.delay + (_SLOW_S if fate == "slow" else 0.0))
            if fate in _REJECTIONS:
                self.answer(_REJECTIONS[fate][0], {}, _REJECTIONS[fate][1])
            else:
                self.pass_on(body)

        def pass_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
            except (OSError, http.client.HTTPException):
                # The network is down.
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in answer.getheaders()}
            headers.pop("transfer-encoding", None)
            headers.pop("connection", None)
            self.answer(answer.status, headers, content)

        def answer(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
            self.send_response(status)
            # The answer to HEAD has the length of a body that does not follow.
            length = headers.get("content-length") if self.command == "HEAD" else None
            for name, value in {**headers, "content-length": length or str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request  # noqa: N815

    server = _Server(("127.0.0.1", 0), Handler)
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
