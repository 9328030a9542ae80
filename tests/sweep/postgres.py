"""A PostgreSQL server of a test's own, from the system's package; it refuses to run as root, so it runs as nobody."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.tracking.server import free_port


def binaries() -> Path | None:
    """Returns the folder of PostgreSQL's newest programs; None where it is not installed."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found and (initdb := shutil.which("initdb")):
        found = [Path(initdb).resolve().parent]
    return max(found, key=lambda path: path.parent.name, default=None)


class Postgres:
    """A database server in a temporary folder, on a free port, reached without a password from this machine."""

    def __init__(self, programs: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="runner-postgres-"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        data, port = self._folder / "data", free_port()
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "runner", "--auth=trust", "-E", "UTF8"],
            check=True, capture_output=True, cwd=self._folder, **self._user,
        )  # fmt: skip
        self.uri = f"postgresql+psycopg://runner@127.0.0.1:{port}/postgres"
        self._process = subprocess.Popen(
            [programs / "postgres", "-D", data, "-p", str(port), "-k", self._folder, "-h", "127.0.0.1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self._folder, **self._user,
        )  # fmt: skip
        ready = [programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
        for _ in range(200):
            if subprocess.run(ready, stdout=subprocess.DEVNULL, check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError("PostgreSQL did not start")

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)  # a fast shutdown
        self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)
