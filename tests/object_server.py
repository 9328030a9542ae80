"""A server of S3's protocol on loopback: moto's, and proxies before it: of the same protocol, or of Google's.

moto is not in the tests' environment, because its libraries are many: `.ci/nightly` installs it into `.venv/stores`.
The environment variable RUNNER_TESTS_MOTO names another interpreter that has it.
"""

import http.client
import json
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
_FATES = {UNAVAILABLE: ("503",), THROTTLES: ("SlowDown", "429", "slow", "answer")}
_REJECTIONS = {
    "503": (503, {}, b""),
    "500": (500, {}, b""),
    "429": (429, {}, b""),
    "SlowDown": (503, {}, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"),
}
_SLOW_S = 1.0
_TIMEOUT_S = 60
# moto reads the region of a request from this header, and does not verify the signature.
_SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=none"
Answer = tuple[int, Mapping[str, str], bytes]  # status, headers by their lower-case names, and body


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
      trouble: `UNAVAILABLE`, `THROTTLES` or empty: what happens to every request while it is set.
      port: of the proxy.
      rejected: how many requests were.
    """

    target: int
    rejects: float = 0.0
    trouble: str = ""
    port: int = 0
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
        """Returns what happens to a request."""
        with self.lock:
            if self.trouble:
                fate = self.draw.choice(_FATES[self.trouble])
            elif self.draw.random() < self.rejects:
                fate = self.draw.choice(("503", "500"))
            else:
                return "answer"
            self.rejected += fate != "answer"
            return fate

    def answer(self, command: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Returns the server's answer to a request.

        Raises:
          OSError, HTTPException: there is none.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=_TIMEOUT_S)
        connection.request(command, path, body, dict(headers))
        found = connection.getresponse()
        content = found.read()
        connection.close()
        return found.status, {name.lower(): value for name, value in found.getheaders()}, content


@dataclass
class GoogleProxy(Proxy):
    """A proxy of Google Cloud Storage's XML protocol, which has the paths, listings and uploads in parts of S3's.

    The condition of a write is the object's number, of which only that of an object that must not exist is known here.
    Two emulators of Google's own protocol were tried (`gcp-storage-emulator` and Google's testbench): neither answers
    the XML requests of obstore with an ETag, a listing and uploads in parts.

    Attributes:
      conditions: writes with a condition.
    """

    conditions: int = 0
    writing: threading.Lock = field(default_factory=threading.Lock)

    def service_account(self, folder: Path) -> dict[str, str]:
        """Returns what a client's environment needs: a service account that says where the server is."""
        account = folder / "service-account.json"
        empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        content = {"gcs_base_url": f"http://127.0.0.1:{self.port}", "disable_oauth": True, **empty}
        account.write_text(json.dumps(content))
        return {"GOOGLE_SERVICE_ACCOUNT": str(account)}

    def answer(self, command: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Returns the answer to a request, with which no other one comes between a condition and its write."""
        sent = {name: value for name, value in headers.items() if not name.startswith("x-goog-")}
        sent["authorization"] = _SIGNED
        condition = headers.get("x-goog-if-generation-match")
        if condition is None:
            return super().answer(command, path, sent, body)
        assert condition == "0", "no other number is known"
        with self.writing:
            self.conditions += 1
            found, _, _ = super().answer("HEAD", path, {"authorization": _SIGNED}, b"")
            return (412, {}, b"") if found == 200 else super().answer(command, path, sent, body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: the client was killed."""


@contextmanager
def proxied(proxy: Proxy) -> Iterator[None]:
    """Runs a proxy for the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_request(self) -> None:
            fate = proxy.fate()
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if fate == "slow":
                time.sleep(_SLOW_S)
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                answer = _REJECTIONS.get(fate) or proxy.answer(self.command, self.path, headers, body)
            except (OSError, http.client.HTTPException):
                # The network is down.
                self.close_connection = True
                return
            self.send(*answer)

        def send(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
            self.send_response(status)
            # The answer to HEAD has the length of a body that does not follow.
            length = headers.get("content-length") if self.command == "HEAD" else None
            for name, value in {**headers, "content-length": length or str(len(content))}.items():
                if name not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request  # noqa: N815

    server = _Server(("127.0.0.1", 0), Handler)
    proxy.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
