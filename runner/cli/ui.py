"""MLflow's own page of the runs in the project's store, served on this machine alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from runner.config import values
from runner.config.build import build
from runner.config.fields import integer
from runner.errors import EXIT_DONE, invalid
from runner.host.paths import project_root
from runner.tracking.location import UI_HOST, UI_PORT, is_http, shown, sqlite_path, tracking_uri

# Without the processes for GenAI jobs, and with one worker, it needs a fraction of its usual memory.
_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
# In place of an argument, which every user of the machine could read: it may have a password.
_STORE = "MLFLOW_BACKEND_STORE_URI"


@dataclass(frozen=True)
class Page:
    """What is served: a store, by default the project's, and at which port."""

    uri: str | None = None
    port: int = integer(UI_PORT, at_least=1, at_most=65_535)


def main(arguments: Sequence[str]) -> int:
    """Runs MLflow's server until Ctrl-C, which is raised as Interrupted; returns if the store is a server itself."""
    content = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        content[key] = value
    page = build(Page, content, "")
    values.check(page)
    uri = tracking_uri(page.uri, project_root())
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise invalid("uri", shown(uri), problem="there is no such store", fix="start a run, or set uri=<a store>")
    if is_http(uri):
        print(f"a tracking server has the runs, and the page: {shown(uri)}")
        return EXIT_DONE
    _check_port(page.port)
    print("MLflow starts its page ...", flush=True)
    command = (sys.executable, "-m", "mlflow", "ui", "--host", UI_HOST, "--port", str(page.port), "--workers", "1")
    ready = f"http://{UI_HOST}:{page.port} shows {shown(uri)}; Ctrl-C ends it"
    return _serve(command, {**os.environ, **_ENVIRONMENT, _STORE: uri}, page.port, ready)


def _serve(command: Sequence[str], environment: Mapping[str, str], port: int, ready: str) -> int:
    """Runs the server, and prints the line `ready` when it answers; returns its exit code."""
    # In a group of its own: a Ctrl-C in the terminal would end its server with a traceback, and MLflow not at all.
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:
        try:
            while server.poll() is None and not _answers(port):
                time.sleep(0.2)
            if server.returncode is None:
                print(ready, flush=True)
            return server.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((UI_HOST, port), timeout=1.0):
        return True
    return False


def _check_port(port: int) -> None:
    try:
        socket.create_server((UI_HOST, port)).close()
    except OSError as error:
        problem = f"can't be used ({os.strerror(error.errno or 0)})"
        raise invalid("port", port, problem=problem, fix=f"set port={port + 1}") from error
