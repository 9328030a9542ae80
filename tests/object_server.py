"""A server of S3's protocol on loopback: moto's, and a proxy before it that rejects or delays requests.

moto is not in the tests' environment, because its libraries are many: `.ci/run` installs it into `.venv/stores`. The
environment variable RUNNER_TESTS_MOTO names another interpreter that has it.
"""

from __future__ import annotations

import http.client
import os
import random
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from runner.processes.launch import free_port

ROOT = Path(__file__).parents[1]
_START_S = 60.0
BUCKET = "bucket"


def interpreter() -> str | None:
    """Returns the interpreter that has moto; None if there is none."""
    named = os.environ.get("RUNNER_TESTS_MOTO")
    if named:
        return named
    installed = ROOT / ".venv" / "stores" / "bin" / "python"
    return str(installed) if installed.exists() else None


@contextmanager
def moto() -> Iterator[int]:
    """Yields the port of a server with an empty bucket."""
    python = interpreter()
    assert python is not None
    port = free_port()
    command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
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
      rejects: share of the requests that get an error in place of an answer, or lose the answer.
      delay: seconds before each answer.
      port: of the proxy.
      requests: that came.
      rejected: of them.
    """

    target: int
    rejects: float = 0.0
    delay: float = 0.0
    port: int = 0
    requests: int = 0
    rejected: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(3))

    def environment(self) -> dict[str, str]:
        """Returns what a client's environment needs."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "hunter2hunter2",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }


@contextmanager
def proxied(proxy: Proxy) -> Iterator[Proxy]:
    """Runs a proxy for the block."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                proxy.requests += 1
                fate = "answer"
                if proxy.draw.random() < proxy.rejects:
                    proxy.rejected += 1
                    fate = proxy.draw.choice(["503", "500", "cut", "lost"])
            time.sleep(proxy.delay)
            if fate in ("503", "500"):
                self.send_response(int(fate))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if fate == "cut":
                self.close_connection = True
                return
            connection = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            if fate == "lost":
                # The server has done what was asked, but the client does not learn it.
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            # The answer to HEAD has the length of a body that does not follow.
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
