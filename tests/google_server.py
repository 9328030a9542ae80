"""Google Cloud Storage's XML protocol on loopback: a gateway before moto's server of S3's protocol.

The two protocols have the same paths, listings and uploads in parts. They differ in the versions of objects: Google's
are numbers, in `x-goog-generation`, and the condition of a write in `x-goog-if-generation-match`, 0 for an object
that must not exist. Two emulators of Google's own protocol were tried (`gcp-storage-emulator` and Google's testbench):
neither answers the XML requests of obstore with an ETag, a listing and uploads in parts.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT_S = 60
# moto reads the region of a request from this header, and does not verify the signature.
_SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=none"
# Headers that this server sends itself.
_OWN_HEADERS = ("transfer-encoding", "connection", "content-length")


@dataclass
class Gateway:
    """A server of Google's protocol.

    Attributes:
      target: port of moto's server.
      port: of the gateway.
      generations: path of an object -> its version. A removed object keeps its number, so none is used twice.
      conditions: writes with a condition.
    """

    target: int
    port: int = 0
    generations: dict[str, int] = field(default_factory=dict)
    conditions: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def environment(self, folder: Path) -> dict[str, str]:
        """Returns what a client's environment needs: a service account that says where the server is."""
        account = folder / "service-account.json"
        empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        content = {"gcs_base_url": f"http://127.0.0.1:{self.port}", "disable_oauth": True, **empty}
        account.write_text(json.dumps(content))
        return {"GOOGLE_SERVICE_ACCOUNT": str(account)}


@contextmanager
def serving(gateway: Gateway) -> Iterator[Gateway]:
    """Runs a gateway for the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            # A part of an upload and its beginning change no object.
            writes = self.command in ("PUT", "DELETE") and "uploadId" not in url.query
            completes = self.command == "POST" and "uploadId" in url.query
            if not writes and not completes:
                self._answer(*self._forwarded(body), url.path)
                return
            # One write at a time: a condition and its write must not be parted.
            with gateway.lock:
                if not self._condition_holds(url.path):
                    self._answer(412, {}, b"", url.path)
                    return
                status, headers, content = self._forwarded(body)
                if status < 300 and self.command != "DELETE":
                    gateway.generations[url.path] = gateway.generations.get(url.path, 1000) + 1
            self._answer(status, headers, content, url.path)

        def _condition_holds(self, path: str) -> bool:
            condition = self.headers.get("x-goog-if-generation-match")
            if condition is None:
                return True
            gateway.conditions += 1
            status, _, _ = self._forwarded(b"", "HEAD")
            current = gateway.generations.setdefault(path, 1000) if status == 200 else 0
            return int(condition) == current

        def _forwarded(self, body: bytes, command: str | None = None) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", gateway.target, timeout=_TIMEOUT_S)
            headers = {"Authorization": _SIGNED}
            for name, value in self.headers.items():
                # The length is that of the body given.
                if name.lower() not in ("authorization", "content-length") and not name.lower().startswith("x-goog-"):
                    headers[name] = value
            connection.request(command or self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, dict(answer.getheaders()), content

        def _answer(self, status: int, headers: dict[str, str], content: bytes, path: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _OWN_HEADERS:
                    self.send_header(name, value)
            if path in gateway.generations:
                self.send_header("x-goog-generation", str(gateway.generations[path]))
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gateway.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
