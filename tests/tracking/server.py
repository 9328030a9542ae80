"""A tracking server that a test starts, kills and starts again."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from runner.cluster.launch import free_port


def wait_until_up(address: str, process: subprocess.Popen[bytes], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no server at {address} after {timeout_s} s")


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


class Server:
    """`mlflow server` on a database of the test's own."""

    def __init__(self, database_uri: str, folder: Path) -> None:
        self.uri = f"http://127.0.0.1:{free_port()}"
        self._command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database_uri]
        self._command += ["--artifacts-destination", str(folder / "served"), "--workers", "1"]
        self._command += ["--host", "127.0.0.1", "--port", self.uri.rpartition(":")[2]]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True, env=environment(), cwd=self._folder
            )
        wait_until_up(self.uri, self._process)

    def kill(self) -> None:
        if self._process is not None:
            kill(self._process)
