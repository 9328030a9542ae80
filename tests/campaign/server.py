"""A tracking server behind a proxy that drops, delays and distorts what goes through it, while a run goes on.

What must hold: every point is in the store once, after the next start at the latest; the status is true; no step waits
for the server; a few lines are said. A run whose start the server does not answer ends with one line.
"""

from __future__ import annotations

import http.client
import os
import random
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.campaign import training
from tests.campaign.base import Case
from tests.campaign.training import STEPS, Places
from tests.tracking.server import Server

CASES = 40
_CONTROL = "/campaign/"
_TIMEOUT_S = 1  # of a request of the run's, as a server that hangs is one of the cases
_BEFORE = ("drops requests", "hangs", "answers 500", "answers 503", "answers 429", "answers 404", "answers a page")
_AFTER = ("stores and drops", "stores and answers 503", "stores and answers half", "stores and hangs", "is slow")
_PAGE = b"<!doctype html><html>" + b"<p>no server here</p>" * 100 + b"</html>"


@dataclass(frozen=True)
class Fault:
    """What the proxy does, and when.

    Attributes:
      kind: what.
      begins: at this step; 0: before the command.
      ends: at this step; more than the run has: not while it runs.
      share: of the requests that it happens to.
    """

    kind: str
    begins: int
    ends: int
    share: float

    def __str__(self) -> str:
        until = f"to step {self.ends}" if self.ends <= STEPS else "to the end"
        return f"the server {self.kind}, {self.share:.0%} of requests, from step {self.begins} {until}"


class Proxy(ThreadingHTTPServer):
    """Hands requests on to a server, or does what the case says."""

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = server.removeprefix("http://")
        self.fault: Fault | None = None
        self.on = False
        self.draw = random.Random(0)
        self.uri = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of a client that left."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith(_CONTROL):
            self.server.on = self.path.endswith("begin")
            self._answer(200, {}, b"{}")
            return
        fault = self.server.fault
        meant = fault is not None and self.server.on and self.server.draw.random() < fault.share
        kind = fault.kind if fault is not None and meant else ""
        if kind in _BEFORE:
            self._instead(kind)
            return
        self._after(kind, *self._forward(body))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - the library's own names

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.target, timeout=30)
        try:
            headers = {**self.headers, "Host": self.server.target}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            kept = {key: value for key, value in answer.headers.items() if key.lower() == "content-type"}
            return answer.status, kept, answer.read()
        finally:
            connection.close()

    def _instead(self, kind: str) -> None:
        if kind == "hangs":
            time.sleep(_TIMEOUT_S + 0.5)
        if kind in ("hangs", "drops requests"):
            self._drop()
        else:
            status = 200 if kind == "answers a page" else int(kind.rpartition(" ")[2])
            self._answer(status, {"Content-Type": "text/html"}, _PAGE)

    def _after(self, kind: str, status: int, headers: dict[str, str], body: bytes) -> None:
        if kind == "is slow":
            time.sleep(_TIMEOUT_S / 2)
        if kind == "stores and hangs":
            time.sleep(_TIMEOUT_S + 0.5)
        if kind in ("stores and drops", "stores and hangs"):
            self._drop()
        elif kind == "stores and answers 503":
            self._answer(503, {"Content-Type": "text/html"}, _PAGE)
        elif kind == "stores and answers half":
            self._answer(status, headers, body, len(body) // 2)
            self._drop()
        else:
            self._answer(status, headers, body)

    def _answer(self, status: int, headers: dict[str, str], body: bytes, most: int | None = None) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[:most])

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Tries cases against one server, each with an experiment of its own."""
    training.make_store(folder / "mlflow.db", folder)
    draw = random.Random(seed)
    kinds = [*_BEFORE, *_AFTER]
    draw.shuffle(kinds)
    with _proxy(folder) as proxy:
        for number in range(cases):
            begins = draw.choice((0, 2, draw.randint(3, STEPS - 1), STEPS))
            ends = draw.choice((draw.randint(begins + 1, STEPS), STEPS + 1)) if begins < STEPS else STEPS + 1
            fault = Fault(kinds[number % len(kinds)], begins, ends, draw.choice((1.0, 1.0, 0.3)))
            proxy.draw = random.Random(draw.random())
            yield _try(fault, proxy, folder, number)


@contextmanager
def _proxy(folder: Path) -> Iterator[Proxy]:
    server = Server(f"sqlite:///{folder}/mlflow.db", folder)
    server.start()
    proxy = Proxy(server.uri)
    threading.Thread(target=proxy.serve_forever, name="proxy", daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        server.kill()


def _try(fault: Fault, proxy: Proxy, folder: Path, number: int) -> Case:
    own = folder / str(number)
    places = Places(own / "outputs", own / "elsewhere", own / "kept", proxy.uri, f"case {number}")
    for place in (places.outputs, places.elsewhere, places.kept):
        place.mkdir(parents=True)
    moments = [(fault.begins, "begin"), (fault.ends, "end")]
    proxy.fault = fault

    def at_step(step: int) -> None:
        while moments and step >= moments[0][0]:
            urllib.request.urlopen(f"{proxy.uri}{_CONTROL}{moments.pop(0)[1]}", timeout=10).close()
            time.sleep(0.06)  # the writer's next round meets it

    def begin() -> None:
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(_TIMEOUT_S)
        at_step(0)

    done = training.run(places, at_step, begin=begin)
    proxy.on, proxy.fault = False, None
    after = training.next_start(places)
    found = training.stored(folder / "mlflow.db", places.experiment)
    wrong = training.judge(done, after, found, places.outputs / "checkpoints")
    said = f"exit code {done.code}, {len(done.lines)} lines, status {found.status}, {done.seconds:.1f} s"
    shutil.rmtree(own)
    return Case(str(fault), not wrong, "; ".join(wrong) or said)
